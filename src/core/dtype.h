// Element types of q, k, v, o and the gradients.
#pragma once

#include <cstdint>

#include "core/hd.h"

namespace tilewise {

// The values are those of tilewise_dtype in tilewise.h.
enum class DType : int32_t { kFp16 = 0, kBf16 = 1, kFp32 = 2, kFp64 = 3 };

TILEWISE_HD constexpr int size_of(DType t) {
  return t == DType::kFp64 ? 8 : t == DType::kFp32 ? 4 : 2;
}
TILEWISE_HD constexpr const char* name_of(DType t) {
  return t == DType::kFp16   ? "fp16"
         : t == DType::kBf16 ? "bf16"
         : t == DType::kFp32 ? "fp32"
                             : "fp64";
}
// u: half the distance from 1 to the next larger number.
TILEWISE_HD constexpr double unit_roundoff(DType t) {
  return t == DType::kFp16   ? 0x1p-11
         : t == DType::kBf16 ? 0x1p-8
         : t == DType::kFp32 ? 0x1p-24
                             : 0x1p-53;
}

}  // namespace tilewise
