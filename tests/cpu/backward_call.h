// One backward call as a test sees it: poisoned memory laid out by the problem's strides, the
// forward and the gradients as loops in fp64 over the same inputs, and the call itself.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/numeric.h"
#include "core/registry.h"
#include "cpu/cpu_device.h"
#include "cpu/entries.h"

namespace tilewise::testing_backward {

constexpr TensorId kGradients[] = {TensorId::kDq, TensorId::kDk, TensorId::kDv};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline double value_at(const void* base, int64_t element, DType dtype) {
  if (dtype == DType::kFp32) return static_cast<const float*>(base)[element];
  const uint16_t bits = static_cast<const uint16_t*>(base)[element];
  return dtype == DType::kFp16 ? float_of_fp16(bits) : float_of_bf16(bits);
}
inline void set_value(void* base, int64_t element, DType dtype, double x) {
  const float narrow = static_cast<float>(x);
  if (dtype == DType::kFp32) {
    static_cast<float*>(base)[element] = narrow;
  } else {
    static_cast<uint16_t*>(base)[element] =
        dtype == DType::kFp16 ? fp16_of_float(narrow) : bf16_of_float(narrow);
  }
}

// A case with memory: every tensor as its strides say, 0xFF (NaN) wherever nothing belongs.
struct Call {
  ProblemCase c;
  std::vector<std::vector<unsigned char>> memory{kNumTensors};
  std::vector<float> lse, slopes;
  std::vector<int32_t> cu_q, cu_k;

  explicit Call(const std::string& line) {
    Result<ProblemCase> parsed = parse_case(line);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    c = *parsed;
    std::mt19937 random(static_cast<uint32_t>(c.seed) + 17);
    std::normal_distribution<float> normal;
    for (int t = 0; t < kNumTensors; ++t) {
      const TensorId id = static_cast<TensorId>(t);
      const Extents e = p().extents(id);
      const Strides& s = p().stride(id);
      const int64_t elements = std::max<int64_t>(0, e.batch - 1) * s.batch +
                               std::max<int64_t>(0, e.seqlen - 1) * s.seqlen +
                               (e.heads - 1) * s.head + e.dim;
      memory[t].assign(static_cast<size_t>(elements * size_of(p().dtype)), 0xFF);
      if (id >= TensorId::kDq || id == TensorId::kO) continue;
      for_each(id, [&](int64_t at) { set_value(data(id), at, p().dtype, normal(random)); });
    }
    lse.assign(static_cast<size_t>(p().num_rows()), 0.0f);
    if (p().alibi) {
      for (int64_t h = 0; h < p().num_heads; ++h)
        slopes.push_back(0.7f / static_cast<float>(1 + h));
    }
    cu_q = sums(c.lengths_q);
    cu_k = sums(c.lengths_k);
  }

  static std::vector<int32_t> sums(const std::vector<int32_t>& lengths) {
    std::vector<int32_t> r{0};
    for (const int32_t n : lengths) r.push_back(r.back() + n);
    return r;
  }
  const AttentionProblem& p() const { return c.problem; }
  void* data(TensorId t) { return memory[static_cast<int>(t)].data(); }
  const void* data(TensorId t) const { return memory[static_cast<int>(t)].data(); }

  template <class F>
  void for_each(TensorId t, const F& f) const {
    const Extents e = p().extents(t);
    const Strides& s = p().stride(t);
    for (int64_t b = 0; b < e.batch; ++b) {
      for (int64_t i = 0; i < e.seqlen; ++i) {
        for (int64_t h = 0; h < e.heads; ++h) {
          for (int64_t x = 0; x < e.dim; ++x) f(b * s.batch + i * s.seqlen + h * s.head + x);
        }
      }
    }
  }

  Lengths lengths(int64_t b) const {
    if (!p().varlen) return {p().seqlen_q, p().seqlen_k};
    return {c.lengths_q[b], c.lengths_k[b]};
  }
  int64_t element(TensorId t, int64_t b, int64_t i, int64_t h) const {
    const Strides& s = p().stride(t);
    if (!p().varlen) return b * s.batch + i * s.seqlen + h * s.head;
    const bool keys =
        t == TensorId::kK || t == TensorId::kV || t == TensorId::kDk || t == TensorId::kDv;
    return ((keys ? cu_k : cu_q)[b] + i) * s.seqlen + h * s.head;
  }
  int64_t row(int64_t b, int64_t i, int64_t h) const {
    return p().varlen ? h * p().total_q + cu_q[b] + i : (b * p().num_heads + h) * p().seqlen_q + i;
  }
  double at(TensorId t, int64_t b, int64_t i, int64_t h, int64_t x) const {
    return value_at(data(t), element(t, b, i, h) + x, p().dtype);
  }
  // Final score and its derivative by scale * q.k.
  double score(int64_t b, int64_t i, int64_t h, int64_t j, double* derivative) const {
    double s = 0.0;
    for (int64_t x = 0; x < p().head_dim; ++x) {
      s += at(TensorId::kQ, b, i, h, x) * at(TensorId::kK, b, j, h / p().group(), x);
    }
    s *= p().scale();
    *derivative = 1.0;
    if (p().softcap > 0) {
      const double t = std::tanh(s / p().softcap);
      s = t * p().softcap;
      *derivative = 1.0 - t * t;
    }
    if (p().alibi) s -= slopes[h] * std::abs(double(i + p().mask.diagonal(lengths(b)) - j));
    return s;
  }

  // o and lse of the forward.
  void forward() {
    double unused;
    for (int64_t b = 0; b < p().batch; ++b) {
      for (int64_t h = 0; h < p().num_heads; ++h) {
        for (int64_t i = 0; i < lengths(b).q; ++i) {
          const Span keys = p().mask.keys_of(i, lengths(b));
          std::vector<double> o(p().head_dim_v), s;
          double top = -kInfinity, sum = 0.0;
          for (int64_t j = keys.begin; j < keys.end; ++j) {
            s.push_back(score(b, i, h, j, &unused));
            top = std::max(top, s.back());
          }
          for (int64_t j = keys.begin; j < keys.end; ++j) {
            const double weight = std::exp(s[j - keys.begin] - top);
            sum += weight;
            for (int64_t x = 0; x < p().head_dim_v; ++x) {
              o[x] += weight * at(TensorId::kV, b, j, h / p().group(), x);
            }
          }
          lse[row(b, i, h)] = static_cast<float>(top + std::log(sum));
          for (int64_t x = 0; x < p().head_dim_v; ++x) {
            set_value(data(TensorId::kO), element(TensorId::kO, b, i, h) + x, p().dtype,
                      sum == 0.0 ? 0.0 : o[x] / sum);
          }
        }
      }
    }
  }

  // The gradients in fp64, laid out like dq, dk, dv.
  std::vector<std::vector<double>> expected() const {
    std::vector<std::vector<double>> g;
    for (const TensorId t : kGradients) {
      g.emplace_back(memory[static_cast<int>(t)].size() / size_of(p().dtype), 0.0);
    }
    for (int64_t b = 0; b < p().batch; ++b) {
      for (int64_t h = 0; h < p().num_heads; ++h) {
        for (int64_t i = 0; i < lengths(b).q; ++i) add_row(b, h, i, g);
      }
    }
    return g;
  }
  void add_row(int64_t b, int64_t h, int64_t i, std::vector<std::vector<double>>& g) const {
    const int64_t hk = h / p().group();
    const Span keys = p().mask.keys_of(i, lengths(b));
    double delta = 0.0;
    for (int64_t x = 0; x < p().head_dim_v; ++x) {
      delta += at(TensorId::kO, b, i, h, x) * at(TensorId::kDo, b, i, h, x);
    }
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      double derivative, dp = 0.0;
      const double weight = std::exp(score(b, i, h, j, &derivative) - lse[row(b, i, h)]);
      for (int64_t x = 0; x < p().head_dim_v; ++x) {
        const double d_o = at(TensorId::kDo, b, i, h, x);
        dp += d_o * at(TensorId::kV, b, j, hk, x);
        g[2][element(TensorId::kDv, b, j, hk) + x] += weight * d_o;
      }
      const double ds = weight * (dp - delta) * derivative * p().scale();
      for (int64_t x = 0; x < p().head_dim; ++x) {
        g[0][element(TensorId::kDq, b, i, h) + x] += ds * at(TensorId::kK, b, j, hk, x);
        g[1][element(TensorId::kDk, b, j, hk) + x] += ds * at(TensorId::kQ, b, i, h, x);
      }
    }
  }

  // Poisons the gradients and the workspace, then runs `kernel`.
  void backward(const std::string& kernel, int threads) {
    for (const TensorId t : kGradients) {
      std::fill(memory[static_cast<int>(t)].begin(), memory[static_cast<int>(t)].end(), 0xFF);
    }
    PlanOptions options;
    options.kernel = kernel;
    options.threads = threads;
    const Registry registry(cpu::backward_entries());
    const Result<Plan> plan = make_plan(p(), *cpu::cpu_device(), options, registry);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const size_t bytes = static_cast<size_t>(plan->workspace_bytes);
    std::vector<unsigned char> workspace(bytes + 2 * kWorkspaceAlign, 0xFF);
    void* aligned = workspace.data();
    size_t space = workspace.size();
    ASSERT_NE(std::align(kWorkspaceAlign, bytes, aligned, space), nullptr);
    BackwardArgs a;
    a.q = data(TensorId::kQ), a.k = data(TensorId::kK), a.v = data(TensorId::kV);
    a.o = data(TensorId::kO), a.do_ = data(TensorId::kDo), a.lse = lse.data();
    a.dq = data(TensorId::kDq), a.dk = data(TensorId::kDk), a.dv = data(TensorId::kDv);
    a.alibi_slopes = p().alibi ? slopes.data() : nullptr;
    a.cu_seqlens_q = cu_q.data(), a.cu_seqlens_k = cu_k.data();
    a.workspace = aligned, a.workspace_bytes = plan->workspace_bytes;
    const Status s = plan->entry->backward(*plan, a);
    EXPECT_TRUE(s.ok()) << s.message();
    const auto* begin = static_cast<unsigned char*>(aligned) + bytes;
    EXPECT_TRUE(std::all_of(begin, begin + kWorkspaceAlign / 2, [](int x) { return x == 0xFF; }))
        << "written past the workspace";
  }

  std::vector<std::vector<unsigned char>> gradients() const {
    return {memory.begin() + static_cast<int>(TensorId::kDq), memory.end()};
  }
};

}  // namespace tilewise::testing_backward
