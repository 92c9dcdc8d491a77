// What oracle and eager share: the sums over a row, and one head of a case unpacked for them.
// Internal to harness/.
#pragma once

#include <cstdint>
#include <vector>

#include "core/mask.h"
#include "core/problem.h"
#include "harness/buffers.h"

namespace tilewise::harness {

// out[i] += sum_c coefficient[c] * rows[c * stride + i], i < n.
void add_rows(int64_t n, int64_t count, const double* coefficient, const double* rows,
              int64_t stride, double* out);
void add_rows(int64_t n, int64_t count, const long double* coefficient, const long double* rows,
              int64_t stride, long double* out);
// The same, and squares[i] += the sum over c of out[i]^2 as it stood after each step.
void add_rows_traced(int64_t n, int64_t count, const double* coefficient, const double* rows,
                     int64_t stride, double* out, double* squares);
void add_rows_traced(int64_t n, int64_t count, const long double* coefficient,
                     const long double* rows, int64_t stride, long double* out,
                     long double* squares);
// out[c * stride + i] += coefficient[c] * row[i], i < n.
void add_outer(int64_t n, int64_t count, const double* coefficient, const double* row, double* out,
               int64_t stride);
void add_outer(int64_t n, int64_t count, const long double* coefficient, const long double* row,
               long double* out, int64_t stride);

// One sequence and one kv head of it.
struct HeadPlace {
  int64_t sequence = 0;
  int64_t head_kv = 0;
  Lengths n;
  int64_t b = 0;                     // batch index as Tensors::get() counts
  int64_t q_start = 0, k_start = 0;  // first token
};
std::vector<HeadPlace> head_places(const ProblemCase& c);

template <class Real>
struct Keys {
  std::vector<Real> k, k_t, abs_k_t;  // (n.k, head_dim), (head_dim, n.k)
  std::vector<Real> v, v_t, abs_v;    // (n.k, head_dim_v), (head_dim_v, n.k)
};
template <class Real>
Keys<Real> load_keys(const Tensors& t, const HeadPlace& at);
template <class Real>
std::vector<Real> load_row(const Tensors& t, TensorId id, const HeadPlace& at, int64_t row,
                           int64_t head);

// The keys that query i sees. All masks there are see one run of keys; anything else throws.
Span visible_keys(const MaskSpec& mask, int64_t i, Lengths n);

// softcap and ALiBi, in that order, of scale * q.k.
template <class Real>
struct FinalScore {
  Real value, derivative;  // with respect to scale * q.k
};
template <class Real>
FinalScore<Real> final_score(const Tensors& t, const HeadPlace& at, int64_t head, int64_t i,
                             int64_t j, Real scaled, Real* bias);

}  // namespace tilewise::harness
