// One value per row of an accumulator, for OnlineSoftmax. The four lanes of a quad hold the same
// rows.
#pragma once

#include "core/online_softmax.h"
#include "cuda/ptx/math.cuh"

namespace tilewise::cuda {

template <int kCount>
struct Rows {
  float x[kCount];
};

#define TILEWISE_ROWS_OPERATOR(op)                                                \
  template <int kCount>                                                           \
  __device__ __forceinline__ Rows<kCount> operator op(const Rows<kCount>& a,      \
                                                      const Rows<kCount>& b) {    \
    Rows<kCount> y;                                                               \
    _Pragma("unroll") for (int i = 0; i < kCount; ++i) y.x[i] = a.x[i] op b.x[i]; \
    return y;                                                                     \
  }
TILEWISE_ROWS_OPERATOR(+)
TILEWISE_ROWS_OPERATOR(-)
TILEWISE_ROWS_OPERATOR(*)
TILEWISE_ROWS_OPERATOR(/)
#undef TILEWISE_ROWS_OPERATOR

template <int kCount>
struct RowOps {
  using R = Rows<kCount>;
  template <class F>
  static __device__ __forceinline__ R map(const F& f) {
    R y;
#pragma unroll
    for (int i = 0; i < kCount; ++i) y.x[i] = f(i);
    return y;
  }
  static __device__ __forceinline__ R set(float x) {
    return map([&](int) { return x; });
  }
  static __device__ __forceinline__ R zero() { return set(0.0f); }
  static __device__ __forceinline__ R negative_infinity() { return set(-__builtin_inff()); }
  static __device__ __forceinline__ R exp2(const R& a) {
    return map([&](int i) { return ptx::exp2(a.x[i]); });
  }
  static __device__ __forceinline__ R log2(const R& a) {
    return map([&](int i) { return log2f(a.x[i]); });
  }
  static __device__ __forceinline__ R max(const R& a, const R& b) {
    return map([&](int i) { return fmaxf(a.x[i], b.x[i]); });
  }
  static __device__ __forceinline__ R select_empty(const R& x, const R& if_so, const R& if_not) {
    return map([&](int i) { return x.x[i] == -__builtin_inff() ? if_so.x[i] : if_not.x[i]; });
  }
  static __device__ __forceinline__ R select_zero(const R& x, const R& if_so, const R& if_not) {
    return map([&](int i) { return x.x[i] == 0.0f ? if_so.x[i] : if_not.x[i]; });
  }
  // The values that exceed `reference` by more than `slack`; -inf for the others.
  static __device__ __forceinline__ R beyond(const R& a, const R& reference, float slack) {
    return map([&](int i) { return a.x[i] > reference.x[i] + slack ? a.x[i] : -__builtin_inff(); });
  }
  // Over the quad that shares the rows.
  static __device__ __forceinline__ R quad_max(const R& a) {
    return map([&](int i) {
      float y = fmaxf(a.x[i], __shfl_xor_sync(0xffffffffu, a.x[i], 1));
      return fmaxf(y, __shfl_xor_sync(0xffffffffu, y, 2));
    });
  }
  static __device__ __forceinline__ R quad_sum(const R& a) {
    return map([&](int i) {
      float y = a.x[i] + __shfl_xor_sync(0xffffffffu, a.x[i], 1);
      return y + __shfl_xor_sync(0xffffffffu, y, 2);
    });
  }
};

template <int kCount>
using RowSoftmax = OnlineSoftmax<Rows<kCount>, RowOps<kCount>>;

}  // namespace tilewise::cuda
