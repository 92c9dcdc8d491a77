// The rules catch what they are for, and let the oracle's own values, rounded, pass.
#include "harness/accuracy.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "support.h"

namespace tilewise::harness {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void store(Tensors& t, TensorId id, const std::vector<double>& values) {
  if (values.empty()) return;
  const Extents e = t.problem().extents(id);
  for (int64_t at = 0; at < e.batch * e.seqlen * e.heads; ++at) {
    t.set_row(id, at / e.heads / e.seqlen, at / e.heads % e.seqlen, at % e.heads,
              values.data() + at * e.dim);
  }
}

// A run whose every result is the oracle's, rounded to its type.
struct PerfectRun {
  explicit PerfectRun(const std::string& line) : t(filled(line)), want(oracle(t)), other(eager(t)) {
    store(t, TensorId::kO, want.o);
    store(t, TensorId::kDq, want.dq);
    store(t, TensorId::kDk, want.dk);
    store(t, TensorId::kDv, want.dv);
    for (std::size_t i = 0; i < want.lse.size(); ++i) t.lse()[i] = static_cast<float>(want.lse[i]);
  }
  // "A1 o, A2 o": the rules that fail.
  std::string failures() const {
    std::string out;
    for (const RuleResult& r : check_accuracy(t, want, &other)) {
      if (!r.ok()) out += (out.empty() ? "" : ", ") + r.rule + " " + r.tensor;
    }
    return out;
  }
  bool fails(const std::string& rule) const { return failures().find(rule) != std::string::npos; }

  Tensors t;
  Oracle want;
  Eager other;
};

TEST(Accuracy, TheRoundedTruthPasses) {
  for (const char* type : {"fp16", "bf16", "fp32", "fp64"}) {
    for (const std::string_view family : data_families()) {
      for (const char* rest : {" b1 sq70 sk66 h2 hk1 d16 causal", " b1 sq3 sk5 h4 hk2 d7 softcap:5",
                               " varlen:q=3,0,1:k=2,5,0 h2 d5 dv3 alibi scale:-0.3"}) {
        const std::string direction = family == "nonfinite" ? "" : " backward";
        const PerfectRun run(type + std::string(rest) + direction + " data:" + std::string(family));
        EXPECT_EQ(run.failures(), "") << print(run.t.problem_case());
      }
    }
  }
}

struct Fault {
  const char* rule;  // one that must fail
  std::function<void(PerfectRun&)> commit;
};

void expect_caught(const std::string& line, const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    PerfectRun run(line);
    fault.commit(run);
    EXPECT_TRUE(run.fails(fault.rule)) << line << ": " << fault.rule << " in " << run.failures();
  }
}

void scale_by(PerfectRun& run, TensorId id, std::vector<double> values, double factor) {
  for (double& x : values) x *= factor;
  store(run.t, id, values);
}

TEST(Accuracy, FaultsOfTheOutputAreCaught_F6) {
  const auto at = [](PerfectRun& r, double value) { r.t.set(TensorId::kO, 0, 9, 1, 3, value); };
  for (const char* type : {"fp16", "bf16", "fp32"}) {
    const std::string line = std::string(type) + " b1 sq80 h2 d16 causal";
    const double u = unit_roundoff(case_of(line).problem.dtype);
    const double far = type == std::string("fp32") ? 200 : 5;
    expect_caught(
        line,
        {{"A1 o",
          [&](PerfectRun& r) {
            const int64_t i = packed_index(r.t.problem(), TensorId::kO, 0, 9, 1) + 3;
            at(r, r.want.o[i] + far * u * r.want.o_magnitude[i]);
          }},
         {"A2 o", [&](PerfectRun& r) { scale_by(r, TensorId::kO, r.want.o, 1 + far * 1.5 * u); }},
         {"finite o", [&](PerfectRun& r) { at(r, NAN); }},
         {"finite o", [&](PerfectRun& r) { at(r, kInfinity); }},
         {"A3 lse",
          [](PerfectRun& r) { r.t.lse()[40] += 2e-5f * std::abs(r.t.lse()[40]) + 1e-5f; }},
         {"A3 lse", [](PerfectRun& r) { r.t.lse()[40] *= 1.442695f; }},  // base 2: B004
         {"finite lse", [](PerfectRun& r) { r.t.lse()[40] = -INFINITY; }},
         {"finite lse", [](PerfectRun& r) { r.t.lse()[0] = NAN; }}});
  }
}

TEST(Accuracy, BiasIsCaught) {
  PerfectRun run("bf16 b1 sq128 h1 d64");
  // Towards zero instead of to nearest: half a unit on average, within A1 and A2.
  std::vector<double> cut = run.want.o;
  for (double& x : cut) x -= 0.4 * 0x1p-8;
  store(run.t, TensorId::kO, cut);
  EXPECT_TRUE(run.fails("A7 o"));
}

TEST(Accuracy, EmptyRowsMustBeExactlyEmpty_E1_B133) {
  const std::string line = "fp32 b1 sq5 sk3 h1 d4 causal";
  expect_caught(line, {{"empty o", [](PerfectRun& r) { r.t.set(TensorId::kO, 0, 0, 0, 0, 1e-38); }},
                       {"finite lse", [](PerfectRun& r) { r.t.lse()[0] = INFINITY; }},
                       {"finite lse", [](PerfectRun& r) { r.t.lse()[0] = -1e30f; }}});
}

TEST(Accuracy, FaultsOfTheGradientsAreCaught_F6) {
  for (const char* type : {"fp16", "bf16", "fp32"}) {
    const std::string line = std::string(type) + " b1 sq80 sk90 h4 hk2 d16 backward";
    const double u = unit_roundoff(case_of(line).problem.dtype);
    const double off = type == std::string("fp32") ? 100 * u : 3 * u;
    expect_caught(
        line, {{"A6 dq", [&](PerfectRun& r) { scale_by(r, TensorId::kDq, r.want.dq, 1 + off); }},
               {"A6 dk", [&](PerfectRun& r) { scale_by(r, TensorId::kDk, r.want.dk, 1 + off); }},
               {"A6 dv", [&](PerfectRun& r) { scale_by(r, TensorId::kDv, r.want.dv, 1 + off); }},
               {"A6 dk", [](PerfectRun& r) { r.t.set(TensorId::kDk, 0, 89, 1, 0, 0.5); }},
               {"finite dv", [](PerfectRun& r) { r.t.set(TensorId::kDv, 0, 89, 1, 0, NAN); }}});
  }
}

// Twice as bad as eager fails whatever the absolute size (rules A4, A5).
TEST(Accuracy, EagerIsTheYardstickOfSixteenBits) {
  PerfectRun run("fp16 b1 sq80 h4 d16 backward");
  EXPECT_FALSE(run.fails("A4") || run.fails("A5"));
  std::vector<double> worse = run.other.o;
  for (std::size_t i = 0; i < worse.size(); ++i) {
    worse[i] = run.want.o[i] + 2.5 * (worse[i] - run.want.o[i]);
  }
  store(run.t, TensorId::kO, worse);
  EXPECT_TRUE(run.fails("A4 o"));
  EXPECT_TRUE(run.fails("A5 o"));
}

TEST(Accuracy, DamageIsNamedWithItsPlaceAndValues) {
  PerfectRun run("fp32 b2 sq3 h2 d4");
  run.t.set(TensorId::kO, 1, 2, 0, 3, 100);
  for (const RuleResult& r : check_accuracy(run.t, run.want)) {
    if (r.rule != "A1") continue;
    EXPECT_EQ(r.where.substr(0, 27), "b 1 s 2 h 0 x 3: got 100, w");
    EXPECT_GT(r.worst, 1);
  }
}

TEST(Accuracy, DifferenceOfArrays) {
  const double a[] = {3, 4}, b[] = {3, 4.5};
  EXPECT_NEAR(difference(b, a).relative_l2, 0.1, 1e-15);
  EXPECT_EQ(difference(b, a).max_abs, 0.5);
  EXPECT_EQ(difference(a, a).relative_l2, 0);
}

}  // namespace
}  // namespace tilewise::harness
