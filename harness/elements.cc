// Values as the element types hold them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/numeric.h"
#include "harness/buffers.h"

namespace tilewise::harness {
namespace {

// Rounds to `bits` bits of significand and multiples of 2^lowest, in one step: through fp32 a value
// just beside the middle between two 16-bit numbers would be rounded twice.
double round_once(double x, int bits, int lowest) {
  if (x == 0 || !std::isfinite(x)) return x;
  const auto biased = static_cast<int>(__builtin_bit_cast(uint64_t, x) >> 52 & 0x7ff);
  const int exponent = std::max(biased - 1023 - (bits - 1), lowest);
  // 1.5 * 2^(exponent + 52): the addition leaves multiples of 2^exponent only.
  const auto magic = __builtin_bit_cast(
      double, (static_cast<uint64_t>(exponent + 52 + 1023) << 52) | (uint64_t{1} << 51));
  return std::copysign((x + magic) - magic, x);
}

}  // namespace

double largest_finite(DType t) {
  switch (t) {
    case DType::kFp16:
      return 65504;
    case DType::kBf16:
      return 0x1.FEp127;
    case DType::kFp32:
      return std::numeric_limits<float>::max();
    case DType::kFp64:
      return std::numeric_limits<double>::max();
  }
  return 0;
}

double round_to(DType t, double value) {
  switch (t) {
    case DType::kFp16:
      value = round_once(value, 11, -24);
      break;
    case DType::kBf16:
      value = round_once(value, 8, -133);
      break;
    case DType::kFp32:
      return static_cast<float>(value);
    case DType::kFp64:
      return value;
  }
  if (std::abs(value) > largest_finite(t)) {
    return std::copysign(std::numeric_limits<double>::infinity(), value);
  }
  return value;
}

double load_element(DType t, const void* p) {
  if (t == DType::kFp64) {
    double x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  if (t == DType::kFp32) {
    float x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  uint16_t x;
  std::memcpy(&x, p, sizeof x);
  return t == DType::kFp16 ? float_of_fp16(x) : float_of_bf16(x);
}

void store_element(DType t, void* p, double value) {
  if (t == DType::kFp64) {
    std::memcpy(p, &value, sizeof value);
    return;
  }
  const float x = static_cast<float>(round_to(t, value));  // exact, but for fp32 itself
  if (t == DType::kFp32) {
    std::memcpy(p, &x, sizeof x);
    return;
  }
  const uint16_t bits = t == DType::kFp16 ? fp16_of_float(x) : bf16_of_float(x);
  std::memcpy(p, &bits, sizeof bits);
}

}  // namespace tilewise::harness
