#include "harness/rows.h"

#include <cmath>
#include <stdexcept>

#include "harness/problem_abi.h"

namespace tilewise::harness {
namespace {

template <class Real>
__attribute__((always_inline)) inline void add_rows_body(int64_t n, int64_t count,
                                                         const Real* coefficient, const Real* rows,
                                                         int64_t stride, Real* __restrict out) {
  int64_t c = 0;
  for (; c + 4 <= count; c += 4) {
    const Real c0 = coefficient[c], c1 = coefficient[c + 1];
    const Real c2 = coefficient[c + 2], c3 = coefficient[c + 3];
    const Real* r0 = rows + c * stride;
    const Real *r1 = r0 + stride, *r2 = r1 + stride, *r3 = r2 + stride;
    for (int64_t i = 0; i < n; ++i) {
      out[i] += (c0 * r0[i] + c1 * r1[i]) + (c2 * r2[i] + c3 * r3[i]);
    }
  }
  for (; c < count; ++c) {
    const Real* r = rows + c * stride;
    for (int64_t i = 0; i < n; ++i) out[i] += coefficient[c] * r[i];
  }
}

template <class Real>
__attribute__((always_inline)) inline void traced_body(int64_t n, int64_t count,
                                                       const Real* coefficient, const Real* rows,
                                                       int64_t stride, Real* __restrict out,
                                                       Real* __restrict squares) {
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t i = 0; i < n; ++i) {
      out[i] += coefficient[c] * rows[c * stride + i];
      squares[i] += out[i] * out[i];
    }
  }
}

template <class Real>
__attribute__((always_inline)) inline void add_outer_body(int64_t n, int64_t count,
                                                          const Real* coefficient,
                                                          const Real* __restrict row,
                                                          Real* __restrict out, int64_t stride) {
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t i = 0; i < n; ++i) out[c * stride + i] += coefficient[c] * row[i];
  }
}

// The same loops for wider registers. Not ifuncs, which sanitizers do not start up with; nothing
// is contracted, so the results are those of the baseline bit for bit.
using Rows = void (*)(int64_t, int64_t, const double*, const double*, int64_t, double*);
using Traced = void (*)(int64_t, int64_t, const double*, const double*, int64_t, double*, double*);
using Outer = void (*)(int64_t, int64_t, const double*, const double*, double*, int64_t);

void rows_baseline(int64_t n, int64_t count, const double* c, const double* rows, int64_t stride,
                   double* out) {
  add_rows_body(n, count, c, rows, stride, out);
}
void traced_baseline(int64_t n, int64_t count, const double* c, const double* rows, int64_t stride,
                     double* out, double* squares) {
  traced_body(n, count, c, rows, stride, out, squares);
}
void outer_baseline(int64_t n, int64_t count, const double* c, const double* row, double* out,
                    int64_t stride) {
  add_outer_body(n, count, c, row, out, stride);
}
#if defined(__x86_64__)
__attribute__((target("avx2"))) void rows_avx2(int64_t n, int64_t count, const double* c,
                                               const double* rows, int64_t stride, double* out) {
  add_rows_body(n, count, c, rows, stride, out);
}
__attribute__((target("avx2"))) void traced_avx2(int64_t n, int64_t count, const double* c,
                                                 const double* rows, int64_t stride, double* out,
                                                 double* squares) {
  traced_body(n, count, c, rows, stride, out, squares);
}
__attribute__((target("avx2"))) void outer_avx2(int64_t n, int64_t count, const double* c,
                                                const double* row, double* out, int64_t stride) {
  add_outer_body(n, count, c, row, out, stride);
}
bool have_avx2() { return __builtin_cpu_supports("avx2") != 0; }
#else
constexpr Rows rows_avx2 = rows_baseline;
constexpr Traced traced_avx2 = traced_baseline;
constexpr Outer outer_avx2 = outer_baseline;
bool have_avx2() { return false; }
#endif

bool is_query_side(TensorId t) {
  return t == TensorId::kQ || t == TensorId::kO || t == TensorId::kDo || t == TensorId::kDq;
}

// (rows, dim) and its transpose.
template <class Real>
void load_matrix(const Tensors& t, TensorId id, const HeadPlace& at, int64_t dim,
                 std::vector<Real>& rows, std::vector<Real>& columns) {
  rows.resize(static_cast<std::size_t>(at.n.k * dim));
  columns.resize(rows.size());
  std::vector<double> row(static_cast<std::size_t>(dim));
  for (int64_t j = 0; j < at.n.k; ++j) {
    t.get_row(id, at.b, at.k_start + j, at.head_kv, row.data());
    for (int64_t x = 0; x < dim; ++x) {
      rows[j * dim + x] = row[x];
      columns[x * at.n.k + j] = row[x];
    }
  }
}

template <class Real>
std::vector<Real> absolute(const std::vector<Real>& values) {
  std::vector<Real> out(values);
  for (Real& x : out) x = std::abs(x);
  return out;
}

}  // namespace

void add_rows(int64_t n, int64_t count, const double* coefficient, const double* rows,
              int64_t stride, double* out) {
  static const Rows run = have_avx2() ? rows_avx2 : rows_baseline;
  run(n, count, coefficient, rows, stride, out);
}
void add_rows(int64_t n, int64_t count, const long double* coefficient, const long double* rows,
              int64_t stride, long double* out) {
  add_rows_body(n, count, coefficient, rows, stride, out);
}
void add_rows_traced(int64_t n, int64_t count, const double* coefficient, const double* rows,
                     int64_t stride, double* out, double* squares) {
  static const Traced run = have_avx2() ? traced_avx2 : traced_baseline;
  run(n, count, coefficient, rows, stride, out, squares);
}
void add_rows_traced(int64_t n, int64_t count, const long double* coefficient,
                     const long double* rows, int64_t stride, long double* out,
                     long double* squares) {
  traced_body(n, count, coefficient, rows, stride, out, squares);
}
void add_outer(int64_t n, int64_t count, const double* coefficient, const double* row, double* out,
               int64_t stride) {
  static const Outer run = have_avx2() ? outer_avx2 : outer_baseline;
  run(n, count, coefficient, row, out, stride);
}
void add_outer(int64_t n, int64_t count, const long double* coefficient, const long double* row,
               long double* out, int64_t stride) {
  add_outer_body(n, count, coefficient, row, out, stride);
}

std::vector<HeadPlace> head_places(const ProblemCase& c) {
  std::vector<HeadPlace> places;
  HeadPlace at;
  for (int64_t b = 0; b < c.problem.batch; ++b) {
    at.sequence = b;
    at.n = lengths_of(c, b);
    at.b = c.problem.varlen ? 0 : b;
    for (at.head_kv = 0; at.head_kv < c.problem.num_heads_kv; ++at.head_kv) places.push_back(at);
    if (!c.problem.varlen) continue;
    at.q_start += at.n.q;
    at.k_start += at.n.k;
  }
  return places;
}

template <class Real>
Keys<Real> load_keys(const Tensors& t, const HeadPlace& at) {
  Keys<Real> keys;
  load_matrix(t, TensorId::kK, at, t.problem().head_dim, keys.k, keys.k_t);
  load_matrix(t, TensorId::kV, at, t.problem().head_dim_v, keys.v, keys.v_t);
  keys.abs_k_t = absolute(keys.k_t);
  keys.abs_v = absolute(keys.v);
  return keys;
}

template <class Real>
std::vector<Real> load_row(const Tensors& t, TensorId id, const HeadPlace& at, int64_t row,
                           int64_t head) {
  std::vector<double> values(static_cast<std::size_t>(t.problem().extents(id).dim));
  t.get_row(id, at.b, (is_query_side(id) ? at.q_start : at.k_start) + row, head, values.data());
  return {values.begin(), values.end()};
}

Span visible_keys(const MaskSpec& mask, int64_t i, Lengths n) {
  Span keys;
  while (keys.begin < n.k && !mask.visible(i, keys.begin, n)) ++keys.begin;
  keys.end = keys.begin;
  while (keys.end < n.k && mask.visible(i, keys.end, n)) ++keys.end;
  for (int64_t j = keys.end; j < n.k; ++j) {
    if (mask.visible(i, j, n)) throw std::logic_error("a query that sees two runs of keys");
  }
  return keys;
}

template <class Real>
FinalScore<Real> final_score(const Tensors& t, const HeadPlace& at, int64_t head, int64_t i,
                             int64_t j, Real scaled, Real* bias) {
  const AttentionProblem& p = t.problem();
  FinalScore<Real> s = {scaled, 1};
  if (p.softcap > 0) {
    const Real capped = std::tanh(scaled / p.softcap);
    s = {p.softcap * capped, (1 - capped) * (1 + capped)};
  }
  *bias = 0;
  if (p.alibi) {
    const Real slope = t.alibi_slopes()[at.sequence * t.alibi_batch_stride() + head];
    *bias = -slope * std::abs(static_cast<Real>(i + p.mask.diagonal(at.n) - j));
    s.value += *bias;
  }
  return s;
}

template Keys<double> load_keys<double>(const Tensors&, const HeadPlace&);
template Keys<long double> load_keys<long double>(const Tensors&, const HeadPlace&);
template std::vector<double> load_row<double>(const Tensors&, TensorId, const HeadPlace&, int64_t,
                                              int64_t);
template std::vector<long double> load_row<long double>(const Tensors&, TensorId, const HeadPlace&,
                                                        int64_t, int64_t);
template FinalScore<double> final_score<double>(const Tensors&, const HeadPlace&, int64_t, int64_t,
                                                int64_t, double, double*);
template FinalScore<long double> final_score<long double>(const Tensors&, const HeadPlace&, int64_t,
                                                          int64_t, int64_t, long double,
                                                          long double*);

}  // namespace tilewise::harness
