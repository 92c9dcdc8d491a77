#include <cmath>
#include <limits>

#include "core/numeric.h"
#include "support.h"

namespace tilewise::harness {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Elements, EverySixteenBitPatternSurvives) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    for (const DType t : {DType::kFp16, DType::kBf16}) {
      const auto pattern = static_cast<uint16_t>(bits);
      const double value = load_element(t, &pattern);
      if (std::isnan(value)) continue;
      uint16_t back = 0;
      store_element(t, &back, value);
      ASSERT_EQ(back, pattern) << name_of(t);
      ASSERT_EQ(round_to(t, value), value);
    }
  }
}

// Through fp32 this would be rounded twice: down to the middle, then up to even.
TEST(Elements, RoundsOnce) {
  EXPECT_EQ(round_to(DType::kFp16, 1 + 0x1p-11), 1);
  EXPECT_EQ(round_to(DType::kFp16, 1 + 3 * 0x1p-11), 1 + 0x1p-9);
  EXPECT_EQ(round_to(DType::kFp16, 1 + 3 * 0x1p-11 - 0x1p-40), 1 + 0x1p-10);
  EXPECT_EQ(round_to(DType::kBf16, -1 - 0x1p-8 - 0x1p-40), -1 - 0x1p-7);
  EXPECT_EQ(round_to(DType::kFp16, 65519.9), 65504);
  EXPECT_EQ(round_to(DType::kFp16, -65520), -kInfinity);
  EXPECT_EQ(round_to(DType::kBf16, 0x1.FFp127), kInfinity);
  EXPECT_EQ(round_to(DType::kFp16, 0x1p-25), 0);
  EXPECT_EQ(round_to(DType::kFp16, 0x1.8p-25), 0x1p-24);
  EXPECT_EQ(round_to(DType::kBf16, 0x1p-133), 0x1p-133);
  EXPECT_TRUE(std::signbit(round_to(DType::kFp16, -1e-30)));
  EXPECT_TRUE(std::isnan(round_to(DType::kBf16, NAN)));
}

}  // namespace
}  // namespace tilewise::harness
