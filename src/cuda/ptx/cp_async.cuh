// Copies from global to shared memory that run beside the computation (PTX ISA 9.7.9.25.3).
#pragma once

#include <cstdint>

namespace tilewise::ptx {

// 16 bytes, of which the first `bytes` (0 to 16) come from global memory; the others become 0.
// Both addresses are 16-byte aligned. Not through the L1 cache.
__device__ __forceinline__ void cp_async_16(uint32_t smem, const void* gmem, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(smem), "l"(gmem), "r"(bytes)
               : "memory");
}
// The same, all 16 of them.
__device__ __forceinline__ void cp_async_16(uint32_t smem, const void* gmem) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(smem), "l"(gmem) : "memory");
}
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
// Waits until at most kPending groups of this thread are still under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace tilewise::ptx
