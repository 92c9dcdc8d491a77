// The oracle: naive attention in double (long double for fp64 problems), written apart from
// src/cpu/reference.cc so that the library's own reference is tested too. Only MaskSpec::visible()
// is shared with the library.
//
// Non-finite input follows the contract: a score of -inf has weight 0, a row with nothing else is
// empty (o = 0, lse = -inf); a score of NaN or +inf makes the row NaN; a non-finite visible v makes
// its column of o NaN, which stands for "not finite, whatever the value". q.k that overflows fp32
// is infinite unless the problem is fp64.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "harness/buffers.h"

namespace tilewise::harness {

// Arrays are contiguous: tensors as (batch, seqlen, head, dim), rows as (batch, head, seqlen_q);
// varlen without the batch dimension over all tokens.
struct Oracle {
  std::vector<double> o, lse;
  std::vector<double> dq, dk, dv;   // backward only
  std::vector<double> o_magnitude;  // sum_j P_ij |v_j|, like o: M of rule A1
  // Of each row, like lse, the largest over its visible keys: |scale| sum |q||k_j| + |bias|, and
  // the error to expect, in units of u, of a score summed in order of the channels: every step
  // rounds the sum so far. Every weight P_ij inherits it.
  std::vector<double> score_magnitude, score_error;
  // The sizes of what is rounded on the way to o and the gradients, in units of u: the root sum of
  // squares of their terms (what they would be without cancellation); for dq and dk also the
  // rounding of o, through delta = do.o, and of tanh, through 1 - tanh^2.
  std::vector<double> o_noise, dq_noise, dk_noise, dv_noise;
};

Oracle oracle(const Tensors& inputs);

// Three-step attention that stores scores, P, dP and dS in the problem's type: what a user without
// a fused kernel gets, the yardstick of rules A4 and A5. Values are rounded to the type.
struct Eager {
  std::vector<double> o;
  std::vector<double> dq, dk, dv;  // backward only
};

Eager eager(const Tensors& inputs);

// Index of element (b, s, h, 0) of a tensor in the arrays above; of row (b, s, h) in lse.
int64_t packed_index(const AttentionProblem& p, TensorId t, int64_t b, int64_t s, int64_t h);
int64_t lse_index(const AttentionProblem& p, int64_t b, int64_t s, int64_t h);

}  // namespace tilewise::harness
