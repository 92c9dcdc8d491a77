// The tensor core instruction of sm_80 (PTX ISA 9.7.14.5.8).
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace tilewise::ptx {

// d += a b for a (16, 16) row-major, b (16, 8) column-major, d (16, 8) fp32. Lane l holds, with
// g = l / 4 and t = 2 (l % 4): d[0..1] of row g and d[2..3] of row g + 8, columns t and t + 1;
// a[0], a[1] of rows g, g + 8 and columns t, t + 1, a[2], a[3] of columns t + 8, t + 9; b[0] of
// rows t, t + 1 and b[1] of rows t + 8, t + 9, column g.
template <DType kType>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  if constexpr (kType == DType::kBf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(kType == DType::kFp16);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace tilewise::ptx
