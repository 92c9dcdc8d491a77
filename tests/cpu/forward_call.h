// One call of a CPU forward kernel, and the same in a loop in fp64.
#pragma once

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

namespace tilewise::cpu::forward_test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

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

inline float rounded(float x, DType dtype) {
  if (dtype == DType::kFp16) return float_of_fp16(fp16_of_float(x));
  if (dtype == DType::kBf16) return float_of_bf16(bf16_of_float(x));
  return x;
}

inline int64_t elements(const AttentionProblem& p, TensorId t) {
  const Extents e = p.extents(t);
  return e.batch * e.seqlen * e.heads * e.dim;
}

inline Inputs make_inputs(std::string_view text, float size = 1.0f) {
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

inline std::vector<std::byte> encoded(const std::vector<float>& t, DType dtype) {
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

inline Outputs run(const Inputs& in, std::string_view kernel, RunOptions options = {}) {
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

inline int64_t lse_index(const AttentionProblem& p, int64_t batch, int64_t head, int64_t q) {
  return p.varlen ? head * p.total_q + q : (batch * p.num_heads + head) * p.seqlen_q + q;
}

inline Outputs reference(Inputs in) {
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

inline void expect_close(const Outputs& got, const Outputs& want, double u,
                         const std::string& what) {
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
inline void expect_equal(const std::vector<float>& a, const std::vector<float>& b,
                         const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    ASSERT_EQ(bits_of_float(a[i]), bits_of_float(b[i]))
        << what << " element " << i << ": " << a[i] << " and " << b[i];
  }
}
inline void expect_equal(const Outputs& a, const Outputs& b, const std::string& what) {
  expect_equal(a.o, b.o, what + " o");
  expect_equal(a.lse, b.lse, what + " lse");
}

inline std::vector<std::string> kernels_for(DType dtype) {
  std::vector<std::string> names = {"cpu.forward.scalar"};
  if (best_isa() >= CpuIsa::kAvx2) names.push_back("cpu.forward.avx2");
  if (best_isa() >= CpuIsa::kAvx512) names.push_back("cpu.forward.avx512");
  if (best_isa() >= CpuIsa::kAvx512Bf16 && dtype == DType::kBf16) {
    names.push_back("cpu.forward.avx512bf16");
  }
  return names;
}

inline const char* const kForwardCases[] = {
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

}  // namespace tilewise::cpu::forward_test
