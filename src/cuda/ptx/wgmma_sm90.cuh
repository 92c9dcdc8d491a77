// The warpgroup's tensor core instruction (PTX ISA 9.7.15, wgmma). sm_90a.
//
//   d (64, N) fp32 (+)= a (64, 16) b (16, N)      128 threads, asynchronous
//
// b is a tile in shared memory, a one too or registers. Warp w of the warpgroup holds rows 16 w to
// 16 w + 15 of d and a, in the layouts of mma.sync (mma_sm80.cuh): d[n] is the accumulator of the 8
// columns from 8 n on. Between wgmma_fence() and the wait, d and a register operand a are the
// tensor core's: ptxas runs the instructions one by one when they are touched (its remarks C75xx).
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace tilewise::ptx {

// Before the first product, and after registers of one were written otherwise.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
// Waits until at most kPending groups are still under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// How a or b lies in shared memory: in rows along k, or along its other dimension.
enum class Major : int { kK = 0, kOther = 1 };

// old: 0 forgets what was in d. left and right, where in shared memory: descriptors
// (tile/swizzled_tile.cuh).
template <int kN>
struct Wgmma;

// clang-format off
#define TILEWISE_D48 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23"
#define TILEWISE_D64 TILEWISE_D48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define TILEWISE_D80 TILEWISE_D64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TILEWISE_D96 TILEWISE_D80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TILEWISE_D128 TILEWISE_D96 \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TILEWISE_D192 TILEWISE_D128 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
  "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TILEWISE_D256 TILEWISE_D192 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
  "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, " \
  "%125, %126, %127"

#define TILEWISE_ATOM(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define TILEWISE_ATOMS(n) TILEWISE_ATOM(n), TILEWISE_ATOM(n + 1)
#define TILEWISE_OUT48 TILEWISE_ATOMS(0), TILEWISE_ATOMS(2), TILEWISE_ATOMS(4)
#define TILEWISE_OUT64 TILEWISE_OUT48, TILEWISE_ATOMS(6)
#define TILEWISE_OUT80 TILEWISE_OUT64, TILEWISE_ATOMS(8)
#define TILEWISE_OUT96 TILEWISE_OUT80, TILEWISE_ATOMS(10)
#define TILEWISE_OUT128 TILEWISE_OUT96, TILEWISE_ATOMS(12), TILEWISE_ATOMS(14)
#define TILEWISE_OUT192 TILEWISE_OUT128, TILEWISE_ATOMS(16), TILEWISE_ATOMS(18), \
  TILEWISE_ATOMS(20), TILEWISE_ATOMS(22)
#define TILEWISE_OUT256 TILEWISE_OUT192, TILEWISE_ATOMS(24), TILEWISE_ATOMS(26), \
  TILEWISE_ATOMS(28), TILEWISE_ATOMS(30)

// The operands after d are numbered from N / 2 on.
#define TILEWISE_SHARED(N, type, a, b, keep, left_major, right_major)                        \
  asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" #keep ", 0;\n"                     \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " "             \
               "{" TILEWISE_D##N "}, %" #a ", %" #b ", keep, 1, 1, %" #left_major               \
               ", %" #right_major ";\n}\n"                                                   \
               : TILEWISE_OUT##N                                                              \
               : "l"(left), "l"(right), "r"(old), "n"(static_cast<int>(kA)),                  \
                 "n"(static_cast<int>(kB)))
#define TILEWISE_REGISTERS(N, type, a0, a1, a2, a3, b, keep, major)                           \
  asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" #keep ", 0;\n"                     \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " "             \
               "{" TILEWISE_D##N "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b            \
               ", keep, 1, 1, %" #major ";\n}\n"                                              \
               : TILEWISE_OUT##N                                                              \
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(old), \
                 "n"(static_cast<int>(kB)))
#define TILEWISE_WGMMA(N, i0, i1, i2, i3, i4, i5, i6)                                          \
  template <>                                                                                 \
  struct Wgmma<N> {                                                                           \
    template <DType kType, Major kA, Major kB>                                                \
    static __device__ __forceinline__ void shared(float (&d)[N / 8][4], uint64_t left,         \
                                                  uint64_t right, int old) {                  \
      if constexpr (kType == DType::kBf16) {                                                  \
        TILEWISE_SHARED(N, "bf16", i0, i1, i2, i3, i4);                                           \
      } else {                                                                                \
        TILEWISE_SHARED(N, "f16", i0, i1, i2, i3, i4);                                            \
      }                                                                                       \
    }                                                                                         \
    template <DType kType, Major kB>                                                          \
    static __device__ __forceinline__ void registers(float (&d)[N / 8][4],                     \
                                                     const uint32_t (&left)[4],               \
                                                     uint64_t right, int old) {               \
      if constexpr (kType == DType::kBf16) {                                                  \
        TILEWISE_REGISTERS(N, "bf16", i0, i1, i2, i3, i4, i5, i6);                             \
      } else {                                                                                \
        TILEWISE_REGISTERS(N, "f16", i0, i1, i2, i3, i4, i5, i6);                              \
      }                                                                                       \
    }                                                                                         \
  };

TILEWISE_WGMMA(48, 24, 25, 26, 27, 28, 29, 30)
TILEWISE_WGMMA(64, 32, 33, 34, 35, 36, 37, 38)
TILEWISE_WGMMA(80, 40, 41, 42, 43, 44, 45, 46)
TILEWISE_WGMMA(96, 48, 49, 50, 51, 52, 53, 54)
TILEWISE_WGMMA(128, 64, 65, 66, 67, 68, 69, 70)
TILEWISE_WGMMA(192, 96, 97, 98, 99, 100, 101, 102)
TILEWISE_WGMMA(256, 128, 129, 130, 131, 132, 133, 134)

#undef TILEWISE_WGMMA
#undef TILEWISE_REGISTERS
#undef TILEWISE_SHARED
#undef TILEWISE_ATOMS
#undef TILEWISE_ATOM
#undef TILEWISE_D48
#undef TILEWISE_OUT48
#undef TILEWISE_D64
#undef TILEWISE_OUT64
#undef TILEWISE_D80
#undef TILEWISE_OUT80
#undef TILEWISE_D96
#undef TILEWISE_OUT96
#undef TILEWISE_D128
#undef TILEWISE_OUT128
#undef TILEWISE_D192
#undef TILEWISE_OUT192
#undef TILEWISE_D256
#undef TILEWISE_OUT256
// clang-format on

}  // namespace tilewise::ptx
