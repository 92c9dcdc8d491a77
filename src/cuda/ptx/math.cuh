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

}  // namespace tilewise::ptx
