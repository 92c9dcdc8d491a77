// Registers that warpgroups hand each other, and one thread for a warp (PTX ISA 9.7.19, setmaxnreg;
// 9.7.13, elect.sync). sm_90.
#pragma once

#include <cstdint>

namespace tilewise::ptx {

// Every warp of the warpgroup keeps kCount registers a thread, a multiple of 8; the others are free
// for take_registers() of other warpgroups, which waits for them.
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kCount));
}

// True in one thread of a whole warp.
__device__ __forceinline__ bool elect_one() {
  uint32_t is_me;
  asm volatile(
      "{\n"
      ".reg .pred me;\n"
      "elect.sync _|me, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, me;\n"
      "}\n"
      : "=r"(is_me));
  return is_me != 0;
}

}  // namespace tilewise::ptx
