// 16-bit conversions and the exp2 that every backend shares.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/hd.h"

namespace tilewise {

constexpr float kLog2e = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// exp2(n + k/8 + r) = 2^n * 2^(k/8) * (1 + r*(c1 + r*(c2 + r*c3))), |r| <= 1/16.
// Largest relative error 1.14e-7 (at -0.8124), rms 3.6e-8, measured over all floats in [-20, 0];
// half an ulp at 1 is 6e-8, and no nearby coefficients stay below 1.04e-7.
//
// t = x + kExp2Round leaves round(8x) in the low bits of t. Entry k of the table is the pattern of
// 2^(k/8) minus k << 20, so that table[t & 7] + (t << 20) is the pattern of 2^(n + k/8). The table
// stands there twice for 16-lane permutes. x is clamped to kExp2Lowest, where the pattern is that
// of 0: smaller arguments, -inf among them, give exactly 0.
constexpr float kExp2Round = 1572864.0f;  // 1.5 * 2^20
constexpr float kExp2Lowest = -127.0f;
constexpr float kExp2C1 = 0.693147242f;
constexpr float kExp2C2 = 0.240257636f;
constexpr float kExp2C3 = 0.0554962233f;
// clang-format off
alignas(64) constexpr int32_t kExp2Table[16] = {
    0x3f800000,             0x3f8b95c2 - (1 << 20), 0x3f9837f0 - (2 << 20), 0x3fa5fed7 - (3 << 20),
    0x3fb504f3 - (4 << 20), 0x3fc5672a - (5 << 20), 0x3fd744fd - (6 << 20), 0x3feac0c7 - (7 << 20),
    0x3f800000,             0x3f8b95c2 - (1 << 20), 0x3f9837f0 - (2 << 20), 0x3fa5fed7 - (3 << 20),
    0x3fb504f3 - (4 << 20), 0x3fc5672a - (5 << 20), 0x3fd744fd - (6 << 20), 0x3feac0c7 - (7 << 20)};
// clang-format on

TILEWISE_HD float float_of_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
TILEWISE_HD uint32_t bits_of_float(float x) { return __builtin_bit_cast(uint32_t, x); }

TILEWISE_HD float float_of_bf16(uint16_t x) {
  return float_of_bits(static_cast<uint32_t>(x) << 16);
}

// Round to nearest, ties to even; NaN stays NaN.
TILEWISE_HD uint16_t bf16_of_float(float x) {
  const uint32_t bits = bits_of_float(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

TILEWISE_HD float float_of_fp16(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000u) << 16;
  const uint32_t magnitude = x & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x400u) return float_of_bits(sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;  // exact
  return float_of_bits(sign | bits_of_float(subnormal));
}

// Round to nearest, ties to even; too large becomes infinity; NaN stays NaN.
TILEWISE_HD uint16_t fp16_of_float(float x) {
  const uint32_t bits = bits_of_float(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, rounded by the addition
    const float shifted = float_of_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of_float(shifted) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23) + 0xfffu + odd) >> 13));
}

}  // namespace tilewise
