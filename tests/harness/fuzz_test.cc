#include "harness/fuzz.h"

#include <array>
#include <map>
#include <set>

#include "support.h"

namespace tilewise::harness {
namespace {

constexpr uint64_t kSeeds = 2000;  // of one CI run

std::set<std::string> features_of(const ProblemCase& c) {
  const AttentionProblem& p = c.problem;
  const int64_t q = p.longest_q(), k = p.longest_k();
  const MaskSpec& m = p.mask;
  const std::pair<const char*, bool> all[] = {
      {"fp16", p.dtype == DType::kFp16},
      {"bf16", p.dtype == DType::kBf16},
      {"fp32", p.dtype == DType::kFp32},
      {"fp64", p.dtype == DType::kFp64},
      {"backward", p.backward()},
      {"forward", !p.backward()},
      {"deterministic", p.deterministic},
      {"causal", m.is_causal()},
      {"window", m.window_left != kUnbounded || m.window_right > 0},
      {"topleft", m.align == Corner::kTopLeft},
      {"softcap", p.softcap > 0},
      {"alibi", p.alibi},
      {"alibi by batch", p.alibi && c.seed % 2 == 1},
      {"gqa", p.num_heads > p.num_heads_kv && p.num_heads_kv > 1},
      {"mqa", p.num_heads > 1 && p.num_heads_kv == 1},
      {"varlen", p.varlen},
      {"scale zero", p.has_softmax_scale && p.softmax_scale == 0},
      {"scale negative", p.softmax_scale < 0},
      {"bhsd", p.strides ==
                   [&] {
                     AttentionProblem l = p;
                     set_layout(l, Layout::kBhsd);
                     return l.strides;
                   }()},
      {"qkv", p.strides ==
                  [&] {
                    AttentionProblem l = p;
                    set_layout(l, Layout::kQkv);
                    return l.strides;
                  }()},
      {"own strides", p.stride(TensorId::kQ) != default_strides(p, TensorId::kQ) &&
                          p.stride(TensorId::kO) != default_strides(p, TensorId::kO)},
      {"offset", c.offsets != std::array<int64_t, kNumTensors>{}},
      {"stride 0 of do", p.backward() && p.stride(TensorId::kDo).seqlen == 0},
      {"dv", p.head_dim_v != p.head_dim},
      {"d odd", p.head_dim % 2 == 1},
      {"d big", p.head_dim > 128},
      {"empty q", q == 0},
      {"empty k", k == 0},
      {"decode", q <= 4 && k > 256},
      {"long", q > 300 || k > 600},
      {"data", c.data != "normal"},
  };
  std::set<std::string> out;
  for (const auto& [name, there] : all) {
    if (there) out.insert(name);
  }
  return out;
}

// Pairs that cannot be, or that one run of CI need not reach.
bool excused(const std::string& a, const std::string& b) {
  const auto is = [&](const char* x, const char* y) {
    return (a == x && b == y) || (a == y && b == x);
  };
  const std::set<std::string> types = {"fp16", "bf16", "fp32", "fp64"};
  const std::set<std::string> rare = {"scale zero", "stride 0 of do", "empty q",       "empty k",
                                      "d odd",      "alibi by batch", "decode",        "long",
                                      "fp64",       "deterministic",  "scale negative"};
  if (types.contains(a) && types.contains(b)) return true;
  if (rare.contains(a) && rare.contains(b)) return true;
  return is("forward", "backward") || is("forward", "deterministic") ||
         is("forward", "stride 0 of do") || is("gqa", "mqa") || is("bhsd", "qkv") ||
         is("bhsd", "own strides") || is("qkv", "own strides") || is("empty q", "decode") ||
         is("empty k", "decode") || is("scale zero", "scale negative") ||
         is("bhsd", "stride 0 of do") || is("qkv", "stride 0 of do");
}

TEST(Fuzz, EveryCaseIsValidAndRepeatsFromItsLine_F1_F5) {
  for (uint64_t seed = 0; seed < 3 * kSeeds; ++seed) {
    const ProblemCase c = random_case(seed);
    const Status s = validate(c.problem);
    ASSERT_TRUE(s.ok()) << seed << ": " << print(c) << ": " << s.message();
    const Result<ProblemCase> back = parse_case(print(c));
    ASSERT_TRUE(back.ok()) << print(c) << ": " << back.status().message();
    ASSERT_TRUE(*back == c) << print(c);
    ASSERT_TRUE(random_case(seed) == c);
  }
}

TEST(Fuzz, OneRunReachesEveryPairOfFeatures_B078) {
  std::map<std::string, std::set<std::string>> together;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const std::set<std::string> features = features_of(random_case(seed));
    for (const std::string& f : features) together[f].insert(features.begin(), features.end());
  }
  for (const auto& [a, unused] : together) {
    for (const auto& [b, others] : together) {
      EXPECT_TRUE(a == b || excused(a, b) || others.contains(a)) << a << " with " << b;
    }
  }
  EXPECT_EQ(together.size(), 31u);
}

TEST(Fuzz, WorkIsBounded) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const ProblemCase c = random_case(seed, {.max_work = 1e5});
    const AttentionProblem& p = c.problem;
    double pairs = static_cast<double>(p.batch * p.seqlen_q * p.seqlen_k);
    for (std::size_t b = 0; b < c.lengths_q.size(); ++b) {
      pairs += static_cast<double>(c.lengths_q[b]) * c.lengths_k[b];
    }
    EXPECT_LE(pairs * static_cast<double>(p.num_heads * (p.head_dim + p.head_dim_v)), 1e5)
        << print(c);
  }
}

TEST(Fuzz, MinimiseFindsTheSmallestCase_F5) {
  const auto fails = [](const ProblemCase& c) {  // a fault of causal with five keys or more
    return c.problem.mask.is_causal() && c.problem.longest_k() >= 5 && c.problem.head_dim >= 3;
  };
  int tried = 0;
  for (uint64_t seed = 0; tried < 30; ++seed) {
    const ProblemCase c = random_case(seed);
    if (!fails(c)) continue;
    ++tried;
    const ProblemCase small = minimise(c, fails);
    EXPECT_TRUE(validate(small.problem).ok());
    EXPECT_EQ(print(small), "fp32 b1 sq0 sk5 h1 d3 dv1 causal") << print(c);
  }
}

}  // namespace
}  // namespace tilewise::harness
