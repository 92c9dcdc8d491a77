// The CPU forward kernels against a loop in fp64, and against each other bit by bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>

#include "core/numeric.h"
#include "core/registry.h"
#include "cpu/cpu_device.h"
#include "cpu/entries.h"
#include "cpu/forward.h"

namespace tilewise::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The tensors of one case as fp32 values that the case's dtype holds exactly; default BSHD strides.
struct Inputs {
  ProblemCase c;
  std::vector<float> q, k, v, slopes;
  std::vector<int32_t> cu_q, cu_k;

  float& at(std::vector<float>& t, TensorId id, int64_t batch, int64_t s, int64_t head, int64_t x) {
    const Strides& stride = c.problem.stride(id);
    return t[batch * stride.batch + s * stride.seqlen + head * stride.head + x];
  }
};

float rounded(float x, DType dtype) {
  if (dtype == DType::kFp16) return float_of_fp16(fp16_of_float(x));
  if (dtype == DType::kBf16) return float_of_bf16(bf16_of_float(x));
  return x;
}

int64_t elements(const AttentionProblem& p, TensorId t) {
  const Extents e = p.extents(t);
  return e.batch * e.seqlen * e.heads * e.dim;
}

Inputs make_inputs(std::string_view text, float size = 1.0f) {
  static std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal(0.0f, size);
  Inputs in;
  Result<ProblemCase> parsed = parse_case(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  in.c = *parsed;
  const AttentionProblem& p = in.c.problem;
  const auto fill = [&](std::vector<float>& t, TensorId id) {
    t.resize(elements(p, id));
    for (float& x : t) x = rounded(normal(random), p.dtype);
  };
  fill(in.q, TensorId::kQ);
  fill(in.k, TensorId::kK);
  fill(in.v, TensorId::kV);
  for (int64_t h = 0; p.alibi && h < p.num_heads; ++h) {
    in.slopes.push_back(std::exp2(-static_cast<float>(h + 1)));
  }
  const auto sums = [](const std::vector<int32_t>& lengths) {
    std::vector<int32_t> cu = {0};
    for (const int32_t n : lengths) cu.push_back(cu.back() + n);
    return cu;
  };
  if (p.varlen) in.cu_q = sums(in.c.lengths_q), in.cu_k = sums(in.c.lengths_k);
  return in;
}

struct Outputs {
  std::vector<float> o, lse;
  int64_t workspace_bytes = 0;
};

std::vector<std::byte> encoded(const std::vector<float>& t, DType dtype) {
  std::vector<std::byte> bytes(t.size() * size_of(dtype));
  for (size_t i = 0; i < t.size(); ++i) {
    const uint16_t half = dtype == DType::kFp16 ? fp16_of_float(t[i]) : bf16_of_float(t[i]);
    if (dtype == DType::kFp32) std::memcpy(&bytes[4 * i], &t[i], 4);
    if (dtype != DType::kFp32) std::memcpy(&bytes[2 * i], &half, 2);
  }
  return bytes;
}

struct RunOptions {
  int threads = 1;
  int query_blocks = 0;  // per task; 0: what the plan says
};

Outputs run(const Inputs& in, std::string_view kernel, RunOptions options = {}) {
  const AttentionProblem& p = in.c.problem;
  Device device;
  device.isa = best_isa();
  device.num_cores = 8;
  const KernelEntry* entry = nullptr;
  for (const KernelEntry* e : forward_entries()) {
    if (e->name == kernel) entry = e;
  }
  EXPECT_NE(entry, nullptr) << kernel;
  const Answer answer = entry->supports(p, device);
  EXPECT_TRUE(answer.yes) << answer.reason;

  Plan plan{p, device, entry, {}, 0};
  PlanOptions plan_options;
  plan_options.threads = options.threads;
  const Status shaped = entry->shape(plan, plan_options);
  EXPECT_TRUE(shaped.ok()) << shaped.message();
  if (options.query_blocks > 0) {
    const int lanes = kernel.ends_with("scalar") ? 4 : kernel.ends_with("avx2") ? 8 : 16;
    plan.shape.block_rows = options.query_blocks * 3 * lanes;
    plan.shape.num_tasks = 4096 * p.num_heads_kv;
    plan.workspace_bytes = 32 << 20;
  }
  const auto workspace = std::unique_ptr<void, decltype(&std::free)>(
      std::aligned_alloc(64, (plan.workspace_bytes + 127) / 64 * 64), &std::free);
  std::memset(workspace.get(), 0xff, plan.workspace_bytes);

  Outputs out;
  out.workspace_bytes = plan.workspace_bytes;
  const auto q = encoded(in.q, p.dtype), k = encoded(in.k, p.dtype), v = encoded(in.v, p.dtype);
  std::vector<std::byte> o(elements(p, TensorId::kO) * size_of(p.dtype), std::byte{0xff});
  out.lse.assign(p.num_rows(), kNaN);
  ForwardArgs args;
  args.q = q.data(), args.k = k.data(), args.v = v.data(), args.o = o.data();
  args.lse = out.lse.data();
  args.alibi_slopes = in.slopes.data();
  args.cu_seqlens_q = in.cu_q.data(), args.cu_seqlens_k = in.cu_k.data();
  args.workspace = workspace.get();
  args.workspace_bytes = plan.workspace_bytes;
  const Status status = entry->forward(plan, args);
  EXPECT_TRUE(status.ok()) << status.message();

  out.o.resize(elements(p, TensorId::kO));
  for (size_t i = 0; i < out.o.size(); ++i) {
    uint16_t half = 0;
    if (p.dtype == DType::kFp32) std::memcpy(&out.o[i], &o[4 * i], 4);
    if (p.dtype != DType::kFp32) std::memcpy(&half, &o[2 * i], 2);
    if (p.dtype == DType::kFp16) out.o[i] = float_of_fp16(half);
    if (p.dtype == DType::kBf16) out.o[i] = float_of_bf16(half);
  }
  return out;
}

// Calls f(sequence's batch, lengths, offset of its first query, key) for every sequence.
template <class F>
void for_sequences(const Inputs& in, const F& f) {
  const AttentionProblem& p = in.c.problem;
  for (int64_t b = 0; b < p.batch; ++b) {
    if (p.varlen) {
      f(int64_t{0}, Lengths{in.c.lengths_q[b], in.c.lengths_k[b]}, in.cu_q[b], in.cu_k[b]);
    } else {
      f(b, Lengths{p.seqlen_q, p.seqlen_k}, 0, 0);
    }
  }
}

int64_t lse_index(const AttentionProblem& p, int64_t batch, int64_t head, int64_t q) {
  return p.varlen ? head * p.total_q + q : (batch * p.num_heads + head) * p.seqlen_q + q;
}

Outputs reference(Inputs in) {
  const AttentionProblem& p = in.c.problem;
  Outputs out;
  out.o.resize(elements(p, TensorId::kO));
  out.lse.resize(p.num_rows());
  for_sequences(in, [&](int64_t b, Lengths n, int64_t q_start, int64_t k_start) {
    for (int64_t h = 0; h < p.num_heads; ++h) {
      for (int64_t i = 0; i < n.q; ++i) {
        const Span keys = p.mask.keys_of(i, n);
        const int64_t hk = h / p.group();
        std::vector<double> s;
        double highest = -kInf, sum = 0;
        for (int64_t j = keys.begin; j < keys.end; ++j) {
          double dot = 0;
          for (int64_t x = 0; x < p.head_dim; ++x) {
            dot += double{in.at(in.q, TensorId::kQ, b, q_start + i, h, x)} *
                   in.at(in.k, TensorId::kK, b, k_start + j, hk, x);
          }
          dot *= p.scale();
          if (p.softcap > 0) dot = p.softcap * std::tanh(dot / p.softcap);
          if (p.alibi)
            dot -= in.slopes[h] * static_cast<float>(std::abs(i + p.mask.diagonal(n) - j));
          s.push_back(dot);
          highest = std::max(highest, dot);
        }
        for (double& x : s) sum += x = std::exp(x - highest);
        for (int64_t x = 0; x < p.head_dim_v; ++x) {
          double o = 0;
          for (int64_t j = keys.begin; j < keys.end; ++j) {
            o += s[j - keys.begin] * in.at(in.v, TensorId::kV, b, k_start + j, hk, x);
          }
          in.at(out.o, TensorId::kO, b, q_start + i, h, x) =
              static_cast<float>(s.empty() ? 0 : o / sum);
        }
        out.lse[lse_index(p, b, h, q_start + i)] =
            s.empty() ? -kInf : static_cast<float>(highest + std::log(sum));
      }
    }
  });
  return out;
}

void expect_close(const Outputs& got, const Outputs& want, double u, const std::string& what) {
  ASSERT_EQ(got.o.size(), want.o.size());
  double worst = 0, worst_lse = 0;
  for (size_t i = 0; i < got.o.size(); ++i) {
    const double error = std::abs(double{got.o[i]} - want.o[i]) / (1 + std::abs(want.o[i]));
    worst = std::isnan(error) ? kInf : std::max(worst, error);
  }
  for (size_t i = 0; i < got.lse.size(); ++i) {
    if (want.lse[i] == -kInf) {
      ASSERT_EQ(got.lse[i], -kInf) << what << " lse " << i;
      continue;
    }
    const double error = std::abs(double{got.lse[i]} - want.lse[i]) / (1 + std::abs(want.lse[i]));
    worst_lse = std::isnan(error) ? kInf : std::max(worst_lse, error);
  }
  EXPECT_LE(worst, std::max(4 * u, 4e-6)) << what;
  EXPECT_LE(worst_lse, 4e-6) << what;
}

// Equal bits; any NaN equals any NaN.
void expect_equal(const std::vector<float>& a, const std::vector<float>& b,
                  const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    ASSERT_EQ(bits_of_float(a[i]), bits_of_float(b[i]))
        << what << " element " << i << ": " << a[i] << " and " << b[i];
  }
}
void expect_equal(const Outputs& a, const Outputs& b, const std::string& what) {
  expect_equal(a.o, b.o, what + " o");
  expect_equal(a.lse, b.lse, what + " lse");
}

std::vector<std::string> kernels_for(DType dtype) {
  std::vector<std::string> names = {"cpu.forward.scalar"};
  if (best_isa() >= CpuIsa::kAvx2) names.push_back("cpu.forward.avx2");
  if (best_isa() >= CpuIsa::kAvx512) names.push_back("cpu.forward.avx512");
  if (best_isa() >= CpuIsa::kAvx512Bf16 && dtype == DType::kBf16) {
    names.push_back("cpu.forward.avx512bf16");
  }
  return names;
}

const char* const kCases[] = {
    "fp32 b1 sq1 sk1 h1 hk1 d1",
    "fp32 b2 sq5 sk3 h2 hk1 d64 causal",  // B011: rows that see nothing
    "fp32 b1 sq197 sk197 h2 hk2 d64",
    "fp32 b2 sq33 sk300 h6 hk2 d40 dv24",
    "fp32 b1 sq130 sk129 h4 hk2 d128 causal",
    "fp32 b1 sq100 sk257 h3 hk1 d33 dv65 window:40,7",
    "fp32 b1 sq129 sk70 h1 hk1 d16 window:32,64",  // B131
    "fp32 b1 sq70 sk150 h2 hk1 d24 window:13,-1 topleft",
    "fp32 b1 sq90 sk90 h2 hk2 d17 dv5 softcap:3 causal",
    "fp32 b2 sq66 sk91 h4 hk2 d32 alibi causal",
    "fp32 b1 sq49 sk65 h2 hk1 d20 softcap:2.5 alibi window:20,9",
    "fp32 b1 sq300 sk300 h1 hk1 d512 dv260",
    "fp32 b1 sq60 sk60 h2 hk2 d8 scale:-0.5 causal",  // B043
    "fp32 b1 sq60 sk60 h2 hk2 d8 scale:0 causal",
    "fp32 b1 sq60 sk60 h2 hk2 d8 scale:1e-30",
    "fp32 h2 hk1 d64 varlen:q=3,0,70,1:k=5,2,7,0",
    "fp32 h4 hk2 d32 causal varlen:q=50,130,1:k=70,130,200",
    "fp16 b1 sq100 sk200 h2 hk1 d72 causal",
    "fp16 b1 sq49 sk300 h2 hk2 d64",
    "bf16 b2 sq100 sk300 h4 hk2 d64",
    "bf16 b1 sq100 sk131 h2 hk1 d104 dv77 causal",
    "bf16 b1 sq61 sk61 h2 hk1 d3 dv1",
    "bf16 h4 hk2 d80 causal varlen:q=50,130,1:k=70,130,200",
};

TEST(CpuForward, AgreesWithAnFp64Loop) {
  for (const char* text : kCases) {
    const Inputs in = make_inputs(text);
    const Outputs want = reference(in);
    for (const std::string& kernel : kernels_for(in.c.problem.dtype)) {
      double u = unit_roundoff(in.c.problem.dtype);
      expect_close(run(in, kernel), want, u, kernel + " " + text);
    }
  }
}

// Rows of any size of scores: the reference must move, and not only where a block starts.
TEST(CpuForward, AgreesWhenScoresGrowAlongTheKeys) {
  for (const char* text :
       {"fp32 b1 sq70 sk500 h2 hk1 d64", "fp32 b1 sq300 sk500 h2 hk1 d32 causal"}) {
    Inputs in = make_inputs(text);
    const int64_t width = in.c.problem.num_heads_kv * in.c.problem.head_dim;
    for (size_t i = 0; i < in.k.size(); ++i) in.k[i] *= 0.05f * static_cast<float>(i / width);
    const Outputs want = reference(in);
    for (const std::string& kernel : kernels_for(DType::kFp32)) {
      const Outputs got = run(in, kernel);
      for (size_t i = 0; i < got.o.size(); ++i) {
        ASSERT_NEAR(got.o[i], want.o[i], 2e-4) << kernel << " " << text;
      }
    }
  }
}

TEST(CpuForward, GivesTheSameBitsForEveryInstructionSetTaskSizeAndThreadCount) {
  for (const char* text : kCases) {
    const Inputs in = make_inputs(text, 2.0f);
    if (in.c.problem.dtype == DType::kBf16) continue;
    const Outputs want = run(in, "cpu.forward.scalar");
    for (const std::string& kernel : kernels_for(in.c.problem.dtype)) {
      for (const int threads : {1, 2, 7}) {
        expect_equal(run(in, kernel, {threads, 0}), want, kernel + " " + text);
      }
      for (const int blocks : {1, 2, 5}) {
        expect_equal(run(in, kernel, {3, blocks}), want, kernel + " " + text);
      }
    }
  }
}

TEST(CpuForward, GivesTheSameBitsOfBf16ProductsForEveryTaskSizeAndThreadCount) {
  if (best_isa() < CpuIsa::kAvx512Bf16) GTEST_SKIP() << why_not_higher_isa();
  for (const char* text : kCases) {
    const Inputs in = make_inputs(text, 2.0f);
    if (in.c.problem.dtype != DType::kBf16) continue;
    const Outputs want = run(in, "cpu.forward.avx512bf16");
    for (const int blocks : {1, 2, 5}) {
      expect_equal(run(in, "cpu.forward.avx512bf16", {3, blocks}), want, text);
    }
  }
}

// A sequence alone, beside others, and dense: the same bits (batch invariance).
TEST(CpuForward, GivesASequenceTheSameBitsAloneAndBesideOthers) {
  const Inputs packed = make_inputs("fp32 h4 hk2 d48 causal varlen:q=20,77,130:k=31,90,200");
  Inputs alone = make_inputs("fp32 b1 sq77 sk90 h4 hk2 d48 causal");
  const AttentionProblem& p = packed.c.problem;
  const auto slice = [](const std::vector<float>& t, int64_t stride, int64_t begin, int64_t count) {
    return std::vector<float>(t.begin() + begin * stride, t.begin() + (begin + count) * stride);
  };
  alone.q = slice(packed.q, p.stride(TensorId::kQ).seqlen, 20, 77);
  alone.k = slice(packed.k, p.stride(TensorId::kK).seqlen, 31, 90);
  alone.v = slice(packed.v, p.stride(TensorId::kV).seqlen, 31, 90);
  for (const std::string& kernel : kernels_for(DType::kFp32)) {
    const Outputs all = run(packed, kernel), one = run(alone, kernel);
    expect_equal(one.o, slice(all.o, p.stride(TensorId::kO).seqlen, 20, 77), kernel);
    for (int64_t h = 0; h < 4; ++h) {
      expect_equal(slice(one.lse, 1, h * 77, 77), slice(all.lse, 1, h * p.total_q + 20, 77),
                   kernel);
    }
  }
}

// What a row's neighbours in the vector hold must not touch it: one head's rows have huge scores.
TEST(CpuForward, GivesARowTheSameBitsBesideAnyNeighbours) {
  Inputs calm = make_inputs("fp32 b1 sq60 sk400 h2 hk1 d64");
  Inputs wild = calm;
  for (int64_t s = 0; s < 60; ++s) {
    for (int64_t x = 0; x < 64; ++x) {
      float& q = wild.at(wild.q, TensorId::kQ, 0, s, 1, x);
      q = s % 7 == 0 ? kNaN : s % 7 == 1 ? kInf : q * 1e4f;
    }
  }
  for (const std::string& kernel : kernels_for(DType::kFp32)) {
    const Outputs a = run(calm, kernel), b = run(wild, kernel);
    for (int64_t s = 0; s < 60; ++s) {
      ASSERT_EQ(a.lse[s], b.lse[s]);
      for (int64_t x = 0; x < 64; ++x) {
        ASSERT_EQ(calm.at(calm.v, TensorId::kV, 0, 0, 0, 0), wild.v[0]);
        const int64_t at = s * 128 + x;  // head 0
        ASSERT_EQ(bits_of_float(a.o[at]), bits_of_float(b.o[at])) << kernel;
        if (s % 7 < 2) {
          ASSERT_TRUE(std::isnan(b.o[at + 64])) << kernel;
        }
      }
      if (s % 7 < 2) {
        ASSERT_TRUE(std::isnan(b.lse[60 + s])) << kernel;
      }
    }
  }
}

// B014, B028, B034: what stands in keys that a row does not see is as good as zero.
TEST(CpuForward, IgnoresNonFiniteHiddenKeysAndValues) {
  for (const char* text :
       {"fp32 b1 sq70 sk130 h2 hk1 d40 causal", "bf16 b1 sq70 sk130 h2 hk1 d40 causal"}) {
    Inputs zero = make_inputs(text);
    for (int64_t x = 0; x < 40; ++x) {  // key 100 is seen by queries from 40 on
      zero.at(zero.k, TensorId::kK, 0, 100, 0, x) = 0;
      zero.at(zero.v, TensorId::kV, 0, 100, 0, x) = 0;
    }
    for (const float bad : {kNaN, kInf, -kInf}) {
      Inputs in = zero;
      in.at(in.k, TensorId::kK, 0, 100, 0, 5) = bad;
      in.at(in.v, TensorId::kV, 0, 100, 0, 7) = bad;
      in.at(in.v, TensorId::kV, 0, 100, 0, 39) = bad;
      for (const std::string& kernel : kernels_for(in.c.problem.dtype)) {
        const Outputs a = run(zero, kernel), b = run(in, kernel);
        for (int64_t s = 0; s < 40; ++s) {
          for (int64_t x = 0; x < 80; ++x) ASSERT_EQ(a.o[s * 80 + x], b.o[s * 80 + x]) << kernel;
        }
      }
    }
  }
}

TEST(CpuForward, MakesOnlyTheColumnOfANonFiniteVisibleValueNonFinite) {
  for (const char* text : {"fp32 b1 sq70 sk300 h2 hk1 d40", "bf16 b1 sq70 sk300 h2 hk1 d40"}) {
    Inputs zero = make_inputs(text);
    for (const int64_t key : {3, 250}) zero.at(zero.v, TensorId::kV, 0, key, 0, 7) = 0;
    for (const float bad : {kNaN, kInf, -kInf}) {
      for (const int64_t key : {3, 250}) {
        Inputs in = zero;
        in.at(in.v, TensorId::kV, 0, key, 0, 7) = bad;
        for (const std::string& kernel : kernels_for(in.c.problem.dtype)) {
          const Outputs a = run(zero, kernel), b = run(in, kernel);
          expect_equal(a.lse, b.lse, kernel);
          for (int64_t i = 0; i < 140 * 40; ++i) {
            if (i % 40 == 7) {
              ASSERT_FALSE(std::isfinite(b.o[i])) << kernel;
            } else {
              ASSERT_EQ(a.o[i], b.o[i]) << kernel;
            }
          }
        }
      }
    }
  }
}

// A score of -inf has weight 0; a row of nothing else is an empty row.
TEST(CpuForward, TreatsScoresOfMinusInfinityAsHidden) {
  Inputs in = make_inputs("fp32 b1 sq2 sk200 h1 hk1 d4");
  for (int64_t j = 0; j < 200; ++j) {
    for (int64_t x = 0; x < 4; ++x) in.at(in.k, TensorId::kK, 0, j, 0, x) = 1;
    if (j != 150) in.at(in.k, TensorId::kK, 0, j, 0, 0) = -kInf;
  }
  for (int64_t x = 0; x < 4; ++x) {
    in.at(in.q, TensorId::kQ, 0, 0, 0, x) = 1;  // sees only key 150
    in.at(in.q, TensorId::kQ, 0, 1, 0, x) = x == 0 ? 2.0f : 0.0f;
  }
  for (const std::string& kernel : kernels_for(DType::kFp32)) {
    const Outputs got = run(in, kernel);
    for (int64_t x = 0; x < 4; ++x) {
      EXPECT_EQ(got.o[x], in.at(in.v, TensorId::kV, 0, 150, 0, x)) << kernel;
    }
    EXPECT_NEAR(got.lse[0], 2.0f, 1e-5) << kernel;
  }
  for (int64_t x = 0; x < 4; ++x) in.at(in.k, TensorId::kK, 0, 150, 0, x) = x == 0 ? -kInf : 1.0f;
  in.at(in.v, TensorId::kV, 0, 20, 0, 1) = kInf;
  for (const std::string& kernel : kernels_for(DType::kFp32)) {
    const Outputs got = run(in, kernel);
    for (int64_t x = 0; x < 8; ++x) EXPECT_EQ(bits_of_float(got.o[x]), 0u) << kernel;
    EXPECT_EQ(got.lse[0], -kInf) << kernel;
    EXPECT_EQ(got.lse[1], -kInf) << kernel;
  }
}

// B009, B010, B035: scores far from 0 in both directions; equal ones share the weight.
TEST(CpuForward, ComputesScoresOfAnySize) {
  for (const float size : {-3e38f, -3e37f, -5e5f, 133120.0f * 133120.0f * 8, 1e9f, 2.6e38f}) {
    Inputs in = make_inputs("fp32 b1 sq3 sk150 h1 hk1 d1 scale:1");
    for (float& q : in.q) q = 1;
    for (float& k : in.k) k = size;
    const Outputs want = reference(in);
    for (const std::string& kernel : kernels_for(DType::kFp32)) {
      expect_close(run(in, kernel), want, unit_roundoff(DType::kFp32), kernel);
    }
    in.k[77] = size + 0.25f * std::abs(size);  // alone at the top
    for (const std::string& kernel : kernels_for(DType::kFp32)) {
      const Outputs got = run(in, kernel);
      for (int64_t s = 0; s < 3; ++s)
        EXPECT_NEAR(got.o[s], in.v[77], 1e-6) << kernel << " " << size;
    }
  }
}

TEST(CpuForward, WritesEmptyRowsWhenThereAreNoKeys) {  // B012, B047
  for (const char* text : {"fp32 b2 sq3 sk0 h2 hk1 d8", "bf16 b2 sq3 sk0 h2 hk1 d8 causal",
                           "fp32 h2 hk1 d8 varlen:q=3,2:k=0,0", "fp32 b0 sq3 sk3 h2 hk1 d8",
                           "fp32 b2 sq0 sk3 h2 hk1 d8"}) {
    const Inputs in = make_inputs(text);
    for (const std::string& kernel : kernels_for(in.c.problem.dtype)) {
      const Outputs got = run(in, kernel, {4, 0});
      for (const float x : got.o) EXPECT_EQ(bits_of_float(x), 0u) << kernel << " " << text;
      for (const float x : got.lse) EXPECT_EQ(x, -kInf) << kernel << " " << text;
    }
  }
}

TEST(CpuForward, KeepsScratchWithinFourMebibytesAThread) {
  for (const char* text :
       {"fp32 b1 sq100000 sk100000 h1 hk1 d128", "bf16 b9 sq4096 sk4096 h32 hk8 d64 causal"}) {
    Result<AttentionProblem> p = parse_problem(text);
    ASSERT_TRUE(p.ok());
    for (const KernelEntry* entry : forward_entries()) {
      Device device;
      device.isa = CpuIsa::kAvx512Bf16;
      if (!entry->supports(*p, device).yes) continue;
      Plan plan{*p, device, entry, {}, 0};
      PlanOptions options;
      for (options.threads = 1; options.threads < 100; options.threads *= 3) {
        ASSERT_TRUE(entry->shape(plan, options).ok());
        const int64_t list = plan.shape.num_tasks / p->num_heads_kv * 64;
        EXPECT_LE((plan.workspace_bytes - list) / plan.shape.threads, 4 << 20) << entry->name;
      }
    }
  }
}

TEST(CpuForward, RefusesSizesThatOverflow) {  // B091
  AttentionProblem p = *parse_problem("fp32 b2 sq4 sk4 h4 hk1 d8");
  p.batch = int64_t{1} << 40;
  p.seqlen_q = int64_t{1} << 40;
  Device device;
  Plan plan{p, device, forward_entries().back(), {}, 0};
  const Status status = forward_entries().back()->shape(plan, {});
  EXPECT_EQ(status.code(), StatusCode::kOverflow);
  EXPECT_NE(status.message().find("1099511627776"), std::string::npos) << status.message();
}

TEST(CpuForward, SaysWhyNot) {
  const AttentionProblem p = *parse_problem("fp32 b2 sq4 sk4 h4 hk1 d8");
  Device device;
  device.isa = CpuIsa::kAvx2;
  for (const KernelEntry* entry : forward_entries()) {
    const Answer answer = entry->supports(p, device);
    const std::string want = entry->name == "cpu.forward.avx512" ? "needs avx512, device has avx2"
                             : entry->name == "cpu.forward.avx512bf16" ? "dtype fp32 is not bf16"
                                                                       : "";
    EXPECT_EQ(answer.reason, want) << entry->name;
    EXPECT_EQ(answer.yes, want.empty()) << entry->name;
  }
}

}  // namespace
}  // namespace tilewise::cpu
