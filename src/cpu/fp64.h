// Arithmetic in fp64 over elements of any type: what cpu.reference and merge are written in.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/dtype.h"
#include "core/numeric.h"
#include "core/online_softmax.h"

namespace tilewise::cpu {

// The softmax of one row at a time.
struct DoubleOps {
  static double zero() { return 0.0; }
  static double set(double x) { return x; }
  static double negative_infinity() { return -std::numeric_limits<double>::infinity(); }
  static double exp2(double x) { return std::exp2(x); }
  static double log2(double x) { return std::log2(x); }
  static double max(double a, double b) { return a > b ? a : b; }
  static double select_empty(double x, double if_so, double if_not) {
    return x == negative_infinity() ? if_so : if_not;
  }
  static double select_zero(double x, double if_so, double if_not) {
    return x == 0.0 ? if_so : if_not;
  }
};
using DoubleSoftmax = OnlineSoftmax<double, DoubleOps>;

inline double load_double(const void* base, int64_t element, DType dtype) {
  switch (dtype) {
    case DType::kFp64:
      return static_cast<const double*>(base)[element];
    case DType::kFp32:
      return static_cast<const float*>(base)[element];
    case DType::kFp16:
      return float_of_fp16(static_cast<const uint16_t*>(base)[element]);
    case DType::kBf16:
      return float_of_bf16(static_cast<const uint16_t*>(base)[element]);
  }
  return 0.0;
}

// 16-bit values are rounded once more on their way through fp32; that moves none of them by more
// than half a unit in the last place plus 2^-25 of it.
inline void store_double(void* base, int64_t element, DType dtype, double x) {
  const float narrow = static_cast<float>(x);
  switch (dtype) {
    case DType::kFp64:
      static_cast<double*>(base)[element] = x;
      break;
    case DType::kFp32:
      static_cast<float*>(base)[element] = narrow;
      break;
    case DType::kFp16:
      static_cast<uint16_t*>(base)[element] = fp16_of_float(narrow);
      break;
    case DType::kBf16:
      static_cast<uint16_t*>(base)[element] = bf16_of_float(narrow);
      break;
  }
}

}  // namespace tilewise::cpu
