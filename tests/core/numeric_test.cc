// 16-bit conversions against a slow exact rounding, over all patterns and over millions of floats.
#include "core/numeric.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "core/dtype.h"
#include "core/random.h"

namespace tilewise {
namespace {

struct Format {
  const char* name;
  int exponent_bits, fraction_bits;
  uint16_t (*from_float)(float);
  float (*to_float)(uint16_t);
};
const Format kFormats[] = {
    {"fp16", 5, 10, [](float x) { return fp16_of_float(x); },
     [](uint16_t x) { return float_of_fp16(x); }},
    {"bf16", 8, 7, [](float x) { return bf16_of_float(x); },
     [](uint16_t x) { return float_of_bf16(x); }},
};

// The value of a pattern by its definition, in double (exact).
double value_of(const Format& f, uint16_t x) {
  const int fraction = x & ((1 << f.fraction_bits) - 1);
  const int exponent = (x >> f.fraction_bits) & ((1 << f.exponent_bits) - 1);
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const double sign = (x & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << f.exponent_bits) - 1) {
    return fraction == 0 ? sign * HUGE_VAL : std::nan("");
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - f.fraction_bits);
  return sign * std::ldexp((1 << f.fraction_bits) + fraction, exponent - bias - f.fraction_bits);
}

// Nearest pattern, ties to even: bisection over the ordered non-negative patterns, with infinity
// standing for the next power of two as IEEE 754 has it.
uint16_t round_slowly(const Format& f, float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(x));
  const int infinity = ((1 << f.exponent_bits) - 1) << f.fraction_bits;
  const auto value = [&](int pattern) {
    return pattern == infinity ? std::ldexp(1.0, 1 << (f.exponent_bits - 1))
                               : value_of(f, static_cast<uint16_t>(pattern));
  };
  int low = 0, high = infinity;
  if (magnitude >= value(high)) return static_cast<uint16_t>(sign | infinity);
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (value(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value(low), above = value(high) - magnitude;
  const bool up = above < below || (above == below && low % 2 == 1);
  return static_cast<uint16_t>(sign | (up ? high : low));
}

void expect_rounding(const Format& f, uint32_t bits) {
  const float x = float_of_bits(bits);
  const uint16_t got = f.from_float(x);
  if (std::isnan(x)) {
    ASSERT_TRUE(std::isnan(f.to_float(got))) << f.name << " of NaN " << std::hex << bits;
    ASSERT_EQ(std::signbit(f.to_float(got)), std::signbit(x));
  } else {
    ASSERT_EQ(got, round_slowly(f, x)) << f.name << " of " << x << " = 0x" << std::hex << bits;
  }
}

TEST(Numeric, EveryPatternHasItsValueAndSurvivesTheRoundTrip) {
  for (const Format& f : kFormats) {
    for (uint32_t i = 0; i < 65536; ++i) {
      const uint16_t x = static_cast<uint16_t>(i);
      const double want = value_of(f, x);
      const float got = f.to_float(x);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << f.name << " " << i;
        ASSERT_TRUE(std::isnan(f.to_float(f.from_float(got)))) << f.name << " " << i;
      } else {
        ASSERT_EQ(static_cast<double>(got), want) << f.name << " " << i;
        ASSERT_EQ(f.from_float(got), x) << f.name << " " << i;
      }
    }
  }
}

TEST(Numeric, RoundsNearEveryPatternLikeExactArithmetic) {
  // Every value, every midpoint between neighbours, and one step of float to each side of both.
  for (const Format& f : kFormats) {
    const int infinity = ((1 << f.exponent_bits) - 1) << f.fraction_bits;
    for (int pattern = 0; pattern < infinity; ++pattern) {
      const float value = f.to_float(static_cast<uint16_t>(pattern));
      const double next = pattern + 1 == infinity ? std::ldexp(1.0, 1 << (f.exponent_bits - 1))
                                                  : value_of(f, static_cast<uint16_t>(pattern + 1));
      const double middle = (static_cast<double>(value) + next) / 2.0;
      for (const float center : {value, static_cast<float>(middle)}) {
        for (const int step : {-1, 0, 1}) {
          const uint32_t bits = bits_of_float(center) + static_cast<uint32_t>(step);
          if (center == 0.0f && step < 0) continue;
          expect_rounding(f, bits);
          expect_rounding(f, bits | 0x80000000u);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Numeric, RoundsRandomFloatsLikeExactArithmetic) {
  const PhiloxStream random(5);
  for (const Format& f : kFormats) {
    for (uint64_t i = 0; i < 2'000'000; ++i) {
      uint32_t bits = random.word(i);
      // Half of them in the exponent range where fp16 is finite or subnormal.
      if (i % 2 == 0) bits = (bits & 0x807fffffu) | ((100u + (bits >> 23 & 0xffu) % 45u) << 23);
      expect_rounding(f, bits);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Numeric, SpecialValues) {
  EXPECT_EQ(fp16_of_float(65504.0f), 0x7bff);
  EXPECT_EQ(fp16_of_float(65519.996f), 0x7bff);
  EXPECT_EQ(fp16_of_float(65520.0f), 0x7c00);
  EXPECT_EQ(fp16_of_float(-HUGE_VALF), 0xfc00);
  EXPECT_EQ(fp16_of_float(0x1p-25f), 0x0000);  // tie to even
  EXPECT_EQ(fp16_of_float(0x1.000002p-25f), 0x0001);
  EXPECT_EQ(fp16_of_float(-0.0f), 0x8000);
  EXPECT_EQ(bf16_of_float(1.00390625f), 0x3f80);  // tie to even
  EXPECT_EQ(bf16_of_float(1.01171875f), 0x3f82);
  EXPECT_EQ(bf16_of_float(3.4028235e38f), 0x7f80);
  EXPECT_EQ(bf16_of_float(-0.0f), 0x8000);
  EXPECT_EQ(bf16_of_float(float_of_bits(0x7f800001u)) & 0x7fc0, 0x7fc0);  // must not become inf
}

TEST(Numeric, UnitRoundoffIsHalfTheGapAboveOne) {
  EXPECT_EQ(float_of_fp16(fp16_of_float(1.0f) + 1) - 1.0f, 2.0 * unit_roundoff(DType::kFp16));
  EXPECT_EQ(float_of_bf16(bf16_of_float(1.0f) + 1) - 1.0f, 2.0 * unit_roundoff(DType::kBf16));
  EXPECT_EQ(std::nextafterf(1.0f, 2.0f) - 1.0f, 2.0 * unit_roundoff(DType::kFp32));
  EXPECT_EQ(std::nextafter(1.0, 2.0) - 1.0, 2.0 * unit_roundoff(DType::kFp64));
}

TEST(Numeric, TableOfPowersIsTheRoundedTable) {
  for (int k = 0; k < 8; ++k) {
    const uint32_t want = bits_of_float(static_cast<float>(std::exp2(k / 8.0)));
    EXPECT_EQ(static_cast<uint32_t>(kExp2Table[k]) + (static_cast<uint32_t>(k) << 20), want) << k;
    EXPECT_EQ(kExp2Table[k], kExp2Table[k + 8]) << k;
  }
}

}  // namespace
}  // namespace tilewise
