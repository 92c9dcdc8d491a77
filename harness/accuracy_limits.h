// The limits of the accuracy rules, each stated here and nowhere else (docs/accuracy.md explains
// them). u is half the distance from 1 to the next number of the type.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "core/problem.h"

namespace tilewise::harness {

// Scores are sums of |q||k| * |scale| + |bias|. N(0,1) data reaches 8 (d 64) to 20 (d 512), q x5
// and k x3 reach 280.
constexpr double kPlainScores = 32;
// Beyond, an fp32 lse no longer tells the weights of a row apart: gradients are not compared.
constexpr double kMostScoresBackward = 0x1p18;

// Rules A4, A5 and A7 compare means and maxima of rounding errors: not of a handful of elements,
// nor of rows that are all alike or whose P is exact in 16 bits.
constexpr int64_t kStatisticElements = 4096, kStatisticKeys = 64, kStatisticWindow = 8;

inline bool has_statistics(const ProblemCase& c) {
  const AttentionProblem& p = c.problem;
  bool varied = c.data == "normal" || c.data == "large";
  varied = varied && !p.has_softmax_scale && (p.softcap == 0 || p.softcap >= 5);
  const MaskSpec& mask = p.mask;
  varied = varied && (mask.window_left == kUnbounded || mask.window_right == kUnbounded ||
                      mask.window_left + mask.window_right + 1 >= kStatisticWindow);
  for (const TensorId t : {TensorId::kQ, TensorId::kK, TensorId::kV}) {
    varied = varied && p.stride(t).seqlen != 0;
  }
  return varied && p.longest_q() >= kStatisticKeys && p.longest_k() >= p.longest_q() &&
         p.num_rows() * p.head_dim_v >= kStatisticElements;
}

struct AccuracyLimits {
  double o_factor;   // A1: |error of o| <= o_factor * u * sum_j P_ij |v_j| + smallest
  double o_l2;       // A2: relative L2 of o, one head, in u
  double lse;        // A3: |error of lse| <= max(lse * max(1, |lse|), 4 * 2^-24 * score_error)
  double eager_max;  // A4: largest error over that of eager
  double eager_mean_o, eager_mean_gradient;  // A5: mean error over that of eager
  double gradient_l2;                        // A6: relative L2 of a gradient, one head, in u
  double bias;      // A7: |mean signed error of o| <= bias * u * mean of sum_j P_ij |v_j|
  double smallest;  // absolute error that the type's own range imposes
};

// `scores` and `score_error` are the Oracle's score_magnitude and score_error, the largest of what
// is compared.
inline AccuracyLimits limits_for(const ProblemCase& c, double scores, double score_error,
                                 int64_t keys) {
  const DType type = c.problem.dtype;
  const bool plain = scores <= kPlainScores;
  const double u = unit_roundoff(type);
  AccuracyLimits l{};
  l.lse = 4e-6;
  if (size_of(type) == 2) {
    // Sums are fp32: their share shows only when scores are far beyond the measured ones.
    const double fp32_share = 4 * std::max(0.0, score_error - 100) * 0x1p-24 / u;
    l.o_factor = 3 + fp32_share;
    l.o_l2 = 1.0 + fp32_share;
    l.gradient_l2 = (plain ? 1.5 : 3.0) + 2 * fp32_share;
    l.eager_max = 2;
    l.eager_mean_o = 0.9;
    l.eager_mean_gradient = 1.0;
    l.bias = 0.1;
    // bf16 dot-product instructions read and write subnormal fp32 (below 2^-126) as 0.
    l.smallest = type == DType::kFp16 ? 0x1p-24 : 0x1p-125;
    return l;
  }
  // Measured for up to 2048 keys. A weight is off by as much as its score, so beyond plain scores
  // the expected error of a score takes over.
  const double growth = std::sqrt(std::max(1.0, static_cast<double>(keys) / 2048));
  l.o_factor = 32 + std::max(8 * scores, 4 * score_error);
  l.o_l2 = std::max(plain ? 48.0 : 96.0, 2 * score_error) * growth;
  l.gradient_l2 = std::max(plain ? 64.0 : 400.0, 8 * score_error) * growth;
  l.bias = 2;
  l.smallest = type == DType::kFp64 ? 0x1p-1060 : 0x1p-140;
  return l;
}

}  // namespace tilewise::harness
