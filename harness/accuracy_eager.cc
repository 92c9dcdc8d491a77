#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "harness/accuracy_limits.h"
#include "harness/accuracy_rule.h"

namespace tilewise::harness {

void compare_with_eager(const Tensors& tensors, TensorId t, const std::vector<double>& want,
                        const std::vector<double>& eager, std::vector<RuleResult>& out) {
  const AttentionProblem& p = tensors.problem();
  const AccuracyLimits limits = limits_for(tensors.problem_case(), 0, 0, 0);
  const Extents e = p.extents(t);
  std::vector<double> got(static_cast<std::size_t>(e.dim));
  double most = 0, sum = 0, eager_most = 0, eager_sum = 0;
  for (int64_t b = 0; b < e.batch; ++b) {
    for (int64_t s = 0; s < e.seqlen; ++s) {
      for (int64_t h = 0; h < e.heads; ++h) {
        tensors.get_row(t, b, s, h, got.data());
        const int64_t first = packed_index(p, t, b, s, h);
        for (std::size_t x = 0; x < got.size(); ++x) {
          const double error = std::abs(got[x] - want[first + x]);
          const double other = std::abs(eager[first + x] - want[first + x]);
          most = std::max(most, error);
          eager_most = std::max(eager_most, other);
          sum += error;
          eager_sum += other;
        }
      }
    }
  }
  if (!std::isfinite(eager_sum)) return;
  Rule a4("A4", t), a5("A5", t);
  if (a4.see(eager_most == 0 ? 0 : most / eager_most, limits.eager_max)) {
    a4.where(format("largest error {}, eager {}", most, eager_most));
  }
  const double mean_limit = t == TensorId::kO ? limits.eager_mean_o : limits.eager_mean_gradient;
  if (a5.see(eager_sum == 0 ? 0 : sum / eager_sum, mean_limit)) a5.where("");
  a4.add_to(out);
  a5.add_to(out);
}

Difference difference(std::span<const double> got, std::span<const double> want) {
  Difference d;
  double error2 = 0, want2 = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double error = got[i] - want[i];
    error2 += error * error;
    want2 += want[i] * want[i];
    d.max_abs = std::max(d.max_abs, std::abs(error));
  }
  d.relative_l2 = error2 == 0 ? 0 : std::sqrt(error2 / want2);
  return d;
}

}  // namespace tilewise::harness
