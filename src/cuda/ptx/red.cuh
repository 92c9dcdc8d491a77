// Additions to global memory without a result (PTX ISA 9.7.13.7), and the ordered loads and stores
// that threads of different blocks agree by (9.7.9.8, 9.7.9.12).
#pragma once

#include <cstdint>

namespace tilewise::ptx {

__device__ __forceinline__ void red_add(float* to, float x) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;\n" ::"l"(to), "f"(x) : "memory");
}
// Four neighbouring values, `to` a multiple of 16 bytes. sm_90 and newer.
__device__ __forceinline__ void red_add_v4(float* to, const float (&x)[4]) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "f"(x[0]),
               "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}
// After everything that this thread has seen or written.
__device__ __forceinline__ void red_add_release(int32_t* to, int32_t x) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;\n" ::"l"(to), "r"(x) : "memory");
}
// Before everything that follows.
__device__ __forceinline__ int32_t load_acquire(const int32_t* from) {
  int32_t x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(x) : "l"(from) : "memory");
  return x;
}

}  // namespace tilewise::ptx
