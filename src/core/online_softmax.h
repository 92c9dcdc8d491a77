// OnlineSoftmax: softmax over keys that arrive tile by tile (arXiv 2205.14135, section 3.1; arXiv
// 2307.08691, section 3.1).
//
// Scores are in base 2: s = log2(e) * (scale * q.k + bias). A row is held as a reference exponent
// and the sum of exp2(s - reference). The empty row is (-inf, 0); it is the identity of merge. Log
// base and the sign of the LSE of an empty row are decided here, once.
#pragma once

#include "core/hd.h"
#include "core/numeric.h"

namespace tilewise {

// Ops gives the arithmetic of a row type Rows (one value per query row, in whatever registers a
// backend has): +, -, *, / on Rows, and set, zero, negative_infinity, exp2, log2, max,
// select_empty(x, if_so, if_not) on x == -inf and select_zero(x, if_so, if_not) on x == 0.
template <class Rows, class Ops>
struct OnlineSoftmax {
  Rows reference = Ops::negative_infinity();
  Rows sum = Ops::zero();

  // The simple policy: the reference is the running maximum. `row_max` is that of the new tile.
  // Returns the factor by which sum and O must be multiplied; new weights are exp2(s - reference).
  TILEWISE_HD Rows update(Rows row_max) {
    const Rows old = reference;
    reference = Ops::max(old, row_max);
    const Rows factor = factor_to(old, reference);
    sum = sum * factor;
    return factor;
  }

  // Subtrahend for the exponents: the reference, or 0 in a row that has seen no score above -inf
  // (-inf - -inf would be NaN; exp2(-inf - 0) is the 0 wanted).
  TILEWISE_HD Rows shift() const { return Ops::select_empty(reference, Ops::zero(), reference); }

  // Returns the factor 1/sum for O (0 for an empty row); *lse is the natural log of the sum of
  // exp(score), -inf for an empty row.
  TILEWISE_HD Rows finalize(Rows* lse) const {
    *lse = Ops::select_empty(reference, reference + sum,  // -inf, or NaN if the sum is
                             (reference + Ops::log2(sum)) * Ops::set(0.693147180559945309));
    return Ops::select_zero(sum, Ops::zero(), Ops::set(1.0) / sum);
  }

  // Joins the row with that of other keys. *mine and *theirs are the weights of the two normalised
  // outputs, given that finalize() has been applied to both: o = *mine * o1 + *theirs * o2.
  TILEWISE_HD void merge(const OnlineSoftmax& other, Rows* mine, Rows* theirs) {
    const Rows old = reference;
    reference = Ops::max(old, other.reference);
    *mine = sum * factor_to(old, reference);
    *theirs = other.sum * factor_to(other.reference, reference);
    sum = *mine + *theirs;
    // Divisions, because x * (1 / x) need not be 1 and the empty row must leave o as it is.
    *mine = Ops::select_zero(sum, Ops::zero(), *mine / sum);
    *theirs = Ops::select_zero(sum, Ops::zero(), *theirs / sum);
  }

 private:
  TILEWISE_HD static Rows factor_to(Rows from, Rows to) {
    return Ops::select_empty(from, Ops::zero(), Ops::exp2(from - to));
  }
};

}  // namespace tilewise
