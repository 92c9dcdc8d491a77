// The accuracy rules A1 to A7 (docs/accuracy.md), as data.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/problem.h"
#include "harness/buffers.h"
#include "harness/oracle.h"

namespace tilewise::harness {

struct RuleResult {
  std::string rule;    // "A1" ... "A7", or "finite": which values are finite
  std::string tensor;  // "o", "lse", "dq", "dk", "dv"
  double worst = 0;    // as a multiple of the limit: > 1 fails
  double value = 0;    // in the rule's own unit (u, ratio, ...)
  double limit = 0;    // in the same unit
  std::string where;   // "b 0 s 3 h 1 x 17: got 0.5, want 0.25"
  bool ok() const { return worst <= 1; }
};

// Compares what the tensors hold after a run with the oracle. `eager` may be null; rules A4 and A5
// are then left out. With `lse` false the lse is not looked at (it was not asked for).
std::vector<RuleResult> check_accuracy(const Tensors& tensors, const Oracle& want,
                                       const Eager* eager = nullptr, bool lse = true);

// The same for values that did not come from a run, e.g. golden ones: relative L2 and largest
// absolute difference of two arrays.
struct Difference {
  double relative_l2 = 0;
  double max_abs = 0;
};
Difference difference(std::span<const double> got, std::span<const double> want);

}  // namespace tilewise::harness
