// Single instructions of arithmetic.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace tilewise::ptx {

// 2^x, relative error 2^-22; subnormal results are 0; exp2(-inf) = 0 (PTX ISA 9.7.3.20).
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two fp32 rounded to a pair of 16-bit elements, `low` in the low half (PTX ISA 9.7.9.22).
template <DType kType>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t pair;
  if constexpr (kType == DType::kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

template <DType kType>
__device__ __forceinline__ float2 unpack(uint32_t pair) {
  if constexpr (kType == DType::kBf16) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  } else {
    float low, high;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(low), "=f"(high)
        : "r"(pair));
    return make_float2(low, high);
  }
}

}  // namespace tilewise::ptx
