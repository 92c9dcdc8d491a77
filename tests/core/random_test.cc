// Philox-4x32-10 against the known answers published with the algorithm (Salmon et al., SC'11).
#include "core/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace tilewise {
namespace {

using Words = std::array<uint32_t, 4>;

Words philox(PhiloxCounter counter, PhiloxKey key) {
  const PhiloxCounter c = philox_4x32_10(counter, key);
  return {c.word[0], c.word[1], c.word[2], c.word[3]};
}

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({{0, 0, 0, 0}}, {{0, 0}}),
            (Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  constexpr uint32_t kOnes = 0xffffffffu;
  EXPECT_EQ(philox({{kOnes, kOnes, kOnes, kOnes}}, {{kOnes, kOnes}}),
            (Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  // Digits of pi.
  EXPECT_EQ(
      philox({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, {{0xa4093822u, 0x299f31d0u}}),
      (Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Philox, IsAConstantExpression) {
  static_assert(philox_4x32_10({{0, 0, 0, 0}}, {{0, 0}}).word[0] == 0x6627e8d5u);
}

TEST(PhiloxStream, PutsSeedIntoTheKeyAndIndexAndStreamIntoTheCounter) {
  const uint64_t seed = 0x299f31d0a4093822u, stream = 0x0370734413198a2eu;
  const PhiloxStream random(seed, stream);
  const uint64_t block = 0x85a308d3243f6a88u & 0x3fffffffffffffffu;
  const Words want =
      philox({{0x243f6a88u, static_cast<uint32_t>(block >> 32), 0x13198a2eu, 0x03707344u}},
             {{0xa4093822u, 0x299f31d0u}});
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(random.word(block * 4 + i), want[i]);
}

TEST(PhiloxStream, EveryBitIsFair) {
  constexpr int kWords = 1 << 16;
  const PhiloxStream random(1, 2);
  std::array<int, 32> ones{};
  for (int i = 0; i < kWords; ++i) {
    const uint32_t word = random.word(static_cast<uint64_t>(i));
    for (int bit = 0; bit < 32; ++bit) ones[bit] += (word >> bit) & 1u;
  }
  // Five standard deviations of a binomial.
  for (const int count : ones) EXPECT_NEAR(count, 0.5 * kWords, 2.5 * std::sqrt(kWords));
}

TEST(PhiloxStream, SeedsAndStreamsDiffer) {
  int equal = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    equal += PhiloxStream(1).word(i) == PhiloxStream(2).word(i);
    equal += PhiloxStream(1, 0).word(i) == PhiloxStream(1, 1).word(i);
    equal += PhiloxStream(1).word(i) == PhiloxStream(uint64_t{1} << 32 | 1).word(i);
  }
  EXPECT_EQ(equal, 0);
}

}  // namespace
}  // namespace tilewise
