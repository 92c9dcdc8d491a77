// 16-bit elements and their values, on the host.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/numeric.h"

namespace tilewise::cuda::test {

template <DType kType>
uint16_t element(float x) {
  return kType == DType::kBf16 ? bf16_of_float(x) : fp16_of_float(x);
}
template <DType kType>
float value(uint16_t x) {
  return kType == DType::kBf16 ? float_of_bf16(x) : float_of_fp16(x);
}

}  // namespace tilewise::cuda::test
