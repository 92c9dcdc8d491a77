// Named barriers of a thread block (PTX ISA 9.7.13, bar and barrier). Identifier 0 is that of
// __syncthreads().
#pragma once

#include <cstdint>

namespace tilewise::ptx {

// Waits until `threads` threads, whole warps, have come to the barrier by either function.
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
// Comes to the barrier and does not wait.
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
// Waits as barrier_sync() does; did any of the threads say yes?
__device__ __forceinline__ bool barrier_or(int id, int threads, bool yes) {
  uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred mine, any;\n"
      "setp.ne.u32 mine, %3, 0;\n"
      "bar.red.or.pred any, %1, %2, mine;\n"
      "selp.u32 %0, 1, 0, any;\n"
      "}\n"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(yes))
      : "memory");
  return any != 0;
}

}  // namespace tilewise::ptx
