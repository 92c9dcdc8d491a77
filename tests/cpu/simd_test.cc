// Vector policies: every verb of every instruction set this machine has, bit for bit against the
// scalar twin; and the error of exp2, log2 and tanh.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/numeric.h"
#include "core/random.h"
#include "cpu/cpu_device.h"
#include "simd/verbs.h"

namespace tilewise::cpu::simd_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct IsaTable {
  CpuIsa isa;
  const Table& (*table)();
};
const IsaTable kIsas[] = {
    {CpuIsa::kScalar, scalar_table},
#if defined(TILEWISE_X86)
    {CpuIsa::kAvx2, avx2_table},
    {CpuIsa::kAvx512, avx512_table},
    {CpuIsa::kAvx512Bf16, avx512bf16_table},
#endif
};

class Simd : public testing::TestWithParam<IsaTable> {
 protected:
  void SetUp() override {
    if (GetParam().isa > best_isa())
      GTEST_SKIP() << "this processor has no " << name_of(GetParam().isa);
    table_ = &GetParam().table();
  }
  const Table* table_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Isa, Simd, testing::ValuesIn(kIsas),
                         [](const auto& info) { return std::string(name_of(info.param.isa)); });

struct Block {
  alignas(64) float x[kCount] = {};
};

const float kEdges[] = {0.0f,           -0.0f,    1.0f,       -1.0f,     kInf,      -kInf,
                        kNan,           1e-45f,   -1e-45f,    0x1p-126f, 0x1p-127f, 3.4028235e38f,
                        -3.4028235e38f, -126.0f,  -127.0f,    -126.5f,   -128.0f,   -20.0f,
                        0.0625f,        0.625f,   9.0f,       10.0f,     65504.0f,  65520.0f,
                        0x1p-24f,       0x1p-25f, 1.00390625f};

// Edge values, random patterns, and moderate numbers, in turn.
float sample(const PhiloxStream& random, uint64_t i) {
  const uint32_t word = random.word(i);
  switch (word % 4) {
    case 0:
      return kEdges[(word >> 2) % std::size(kEdges)];
    case 1:
      return float_of_bits(random.word(i + (uint64_t{1} << 40)));
    default:
      return (static_cast<float>(word >> 8) * 0x1p-24f - 0.5f) * 40.0f;
  }
}

// Equal bits; any NaN equals any other, as the payload of an operation is not promised.
bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// What a verb is not defined on (see vector_math.inl and scalar.h).
float domain(Verb verb, float x) {
  if (verb == Verb::kLog2 || verb == Verb::kSplitMantissa || verb == Verb::kSplitExponent) {
    x = std::fabs(x);
    return x >= 0x1p-126f && x < kInf ? x : 1.5f;
  }
  if (verb == Verb::kExp2 || verb == Verb::kExp2Chains) return x > 127.0f ? -x : x;
  return x;
}

TEST_P(Simd, EveryVerbHasTheBitsOfTheScalarTwin) {
  const Table& twin = scalar_table();
  for (int v = 0; v < static_cast<int>(Verb::kNumVerbs); ++v) {
    const Verb verb = static_cast<Verb>(v);
    if (verb == Verb::kAny || verb == Verb::kAll || verb == Verb::kIota || verb == Verb::kSet ||
        verb == Verb::kBroadcast) {
      continue;  // depend on the lane count: tested below
    }
    const PhiloxStream random(11, static_cast<uint64_t>(v));
    for (uint64_t trial = 0; trial < 4000; ++trial) {
      Block a, b, c, got, want;
      for (uint64_t i = 0; i < kCount; ++i) {
        const uint64_t at = (trial * kCount + i) * 3;
        a.x[i] = domain(verb, sample(random, at));
        b.x[i] = domain(verb, sample(random, at + 1));
        c.x[i] = domain(verb, sample(random, at + 2));
      }
      table_->apply(verb, a.x, b.x, c.x, got.x);
      twin.apply(verb, a.x, b.x, c.x, want.x);
      for (int i = 0; i < kCount; ++i) {
        ASSERT_TRUE(same(got.x[i], want.x[i]))
            << kVerbNames[v] << "(" << a.x[i] << ", " << b.x[i] << ", " << c.x[i] << ") is "
            << got.x[i] << ", scalar gives " << want.x[i];
      }
    }
  }
}

TEST_P(Simd, VerbsThatSeeTheWholeVector) {
  const int lanes = table_->lanes;
  ASSERT_EQ(kCount % lanes, 0);
  Block a, b, c, out;
  for (int i = 0; i < kCount; ++i) a.x[i] = 3.0f + static_cast<float>(i);
  table_->apply(Verb::kIota, a.x, b.x, c.x, out.x);
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(out.x[i], static_cast<float>(i % lanes));
  for (const Verb verb : {Verb::kSet, Verb::kBroadcast}) {
    table_->apply(verb, a.x, b.x, c.x, out.x);
    for (int i = 0; i < kCount; ++i) EXPECT_EQ(out.x[i], a.x[i / lanes * lanes]);
  }
  // any and all of a < 0, with every pattern of one vector's lanes and its complement elsewhere.
  for (uint32_t pattern = 0; pattern < (1u << lanes); pattern += lanes == 16 ? 7 : 1) {
    for (int i = 0; i < kCount; ++i) {
      const bool below = ((pattern >> (i % lanes) & 1u) != 0) == (i < lanes);
      a.x[i] = below ? -1.0f : (i % 3 == 0 ? kNan : 1.0f);
    }
    for (int first = 0; first < kCount; first += lanes) {
      bool any = false, all = true;
      for (int i = first; i < first + lanes; ++i) {
        any |= a.x[i] < 0.0f;
        all &= a.x[i] < 0.0f;
      }
      table_->apply(Verb::kAny, a.x, b.x, c.x, out.x);
      ASSERT_EQ(out.x[first], any ? 1.0f : 0.0f) << pattern;
      table_->apply(Verb::kAll, a.x, b.x, c.x, out.x);
      ASSERT_EQ(out.x[first], all ? 1.0f : 0.0f) << pattern;
    }
  }
}

TEST_P(Simd, MaxReturnsTheSecondOperandWhenEitherIsNan) {
  Block a, b, c, out;
  for (int i = 0; i < kCount; ++i) {
    a.x[i] = i % 2 == 0 ? kNan : 7.0f;
    b.x[i] = i % 2 == 0 ? 5.0f : kNan;
  }
  table_->apply(Verb::kMax, a.x, b.x, c.x, out.x);
  for (int i = 0; i < kCount; ++i) {
    if (i % 2 == 0) {
      EXPECT_EQ(out.x[i], 5.0f);
    } else {
      EXPECT_TRUE(std::isnan(out.x[i]));
    }
  }
}

TEST_P(Simd, LoadsEvery16BitPattern) {
  for (uint32_t first = 0; first < 65536; first += kCount) {
    alignas(64) uint16_t in[kCount];
    for (uint32_t i = 0; i < kCount; ++i) in[i] = static_cast<uint16_t>(first + i);
    Block half, brain;
    table_->load_fp16(in, half.x);
    table_->load_bf16(in, brain.x);
    for (int i = 0; i < kCount; ++i) {
      ASSERT_TRUE(same(half.x[i], float_of_fp16(in[i]))) << in[i];
      ASSERT_TRUE(same(brain.x[i], float_of_bf16(in[i]))) << in[i];
    }
  }
}

// Adds a random number of float steps, so that values fall on, just above and just below ties.
TEST_P(Simd, StoresRoundLikeTheCore) {
  const PhiloxStream random(13);
  for (uint64_t trial = 0; trial < 60000; ++trial) {
    Block in;
    for (uint64_t i = 0; i < kCount; ++i) {
      const uint32_t word = random.word(trial * kCount + i);
      const uint16_t pattern = static_cast<uint16_t>(word);
      const float base = word >> 31 ? float_of_fp16(pattern) : float_of_bf16(pattern);
      const uint32_t tie = word >> 31 ? 0x1000u : 0x8000u;
      const uint32_t steps[] = {0, tie,         tie - 1, tie + 1, word >> 16 & 0x7fffu,
                                1, 2 * tie - 1, tie};
      in.x[i] = float_of_bits(bits_of_float(base) + steps[word >> 16 & 7u]);
    }
    alignas(64) uint16_t half[kCount], brain[kCount];
    table_->store_fp16(in.x, half);
    table_->store_bf16(in.x, brain);
    for (int i = 0; i < kCount; ++i) {
      if (std::isnan(in.x[i])) {
        ASSERT_TRUE(std::isnan(float_of_fp16(half[i])) && std::isnan(float_of_bf16(brain[i])));
      } else {
        ASSERT_EQ(half[i], fp16_of_float(in.x[i])) << in.x[i];
        ASSERT_EQ(brain[i], bf16_of_float(in.x[i])) << in.x[i];
      }
    }
  }
}

TEST_P(Simd, TransposesSquares) {
  const int n = table_->lanes;
  std::vector<float> square(static_cast<size_t>(n) * n);
  for (size_t i = 0; i < square.size(); ++i) square[i] = static_cast<float>(i);
  table_->transpose(square.data());
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) EXPECT_EQ(square[i * n + j], static_cast<float>(j * n + i));
  }
}

// Applies a verb of one argument to any number of values.
std::vector<float> map(const Table& table, Verb verb, const std::vector<float>& in) {
  std::vector<float> out(in.size());
  for (size_t first = 0; first < in.size(); first += kCount) {
    Block a, r;
    const size_t n = std::min<size_t>(kCount, in.size() - first);
    std::memcpy(a.x, in.data() + first, n * sizeof(float));
    table.apply(verb, a.x, a.x, a.x, r.x);
    std::memcpy(out.data() + first, r.x, n * sizeof(float));
  }
  return out;
}

double ulp_of(double x) {
  const float f = std::fabs(static_cast<float>(x));
  return static_cast<double>(std::nextafterf(f, kInf)) - f;
}

// Every 97th float of [-20, 0]: 1.1e7 of them.
TEST_P(Simd, Exp2ErrorOnItsRange) {
  std::vector<float> x;
  for (uint32_t bits = 0x80000000u; bits <= bits_of_float(-20.0f); bits += 97) {
    x.push_back(float_of_bits(bits));
  }
  const std::vector<float> y = map(*table_, Verb::kExp2, x);
  double worst = 0.0, square = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp2(static_cast<double>(x[i]));
    const double error = std::fabs(y[i] - want) / want;
    worst = std::max(worst, error);
    square += error * error;
  }
  EXPECT_LE(worst, 1.15e-7);  // core/numeric.h
  EXPECT_LE(std::sqrt(square / static_cast<double>(x.size())), 4e-8);
}

TEST_P(Simd, Exp2OnTheRestOfItsDomain) {
  std::vector<float> x = {-127.0f, -127.5f, -1000.0f, -3e38f, -kInf, kNan, 0.0f, -0.0f, 1.0f};
  for (float v = -126.9f; v <= 127.0f; v += 0.01173f) x.push_back(v);
  const std::vector<float> y = map(*table_, Verb::kExp2, x);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(bits_of_float(y[i]), 0u) << x[i];
  EXPECT_TRUE(std::isnan(y[5]));
  EXPECT_EQ(y[6], 1.0f);
  EXPECT_EQ(y[7], 1.0f);
  EXPECT_EQ(y[8], 2.0f);
  for (size_t i = 9; i < x.size(); ++i) {
    const double want = std::exp2(static_cast<double>(x[i]));
    // Below the normal numbers the result may be anything from 0 to the smallest of them.
    ASSERT_NEAR(y[i], want, want < 0x1p-125 ? 0x1p-126 : 1.15e-7 * want) << x[i];
  }
}

TEST_P(Simd, Log2IsWithinFourUlp) {
  std::vector<float> x;
  const PhiloxStream random(17);
  for (uint64_t i = 0; i < 300000; ++i) {
    x.push_back(float_of_bits(0x00800000u + random.word(i) % 0x7f000000u));   // all normals
    x.push_back(1.0f + static_cast<float>(random.word(i) >> 8) * 0x1p-11f);   // sums of a row
    x.push_back(0.75f + static_cast<float>(random.word(i) >> 8) * 0x1p-25f);  // about 1
  }
  const std::vector<float> y = map(*table_, Verb::kLog2, x);
  double worst = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::log2(static_cast<double>(x[i]));
    worst = std::max(worst, std::fabs(y[i] - want) / std::max(ulp_of(want), 0x1p-26));
  }
  EXPECT_LE(worst, 4.0);  // the ulp of results below 2^-2 counts as 2^-26
  const std::vector<float> powers =
      map(*table_, Verb::kLog2, {1.0f, 2.0f, 0.5f, 1024.0f, 0x1p-126f});
  EXPECT_EQ(powers, (std::vector<float>{0.0f, 1.0f, -1.0f, 10.0f, -126.0f}));
}

TEST_P(Simd, TanhIsWithinTwoUlp) {
  std::vector<float> x = {kInf, -kInf, kNan, 0.0f, -0.0f, 1e-45f, 100.0f, -100.0f};
  for (uint32_t bits = 0; bits < bits_of_float(12.0f); bits += 1999) {
    x.push_back(float_of_bits(bits));
    x.push_back(-x.back());
  }
  const std::vector<float> y = map(*table_, Verb::kTanh, x);
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[1], -1.0f);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 0.0f);
  EXPECT_EQ(y[4], 0.0f);
  EXPECT_EQ(y[6], 1.0f);
  EXPECT_EQ(y[7], -1.0f);
  double worst = 0.0;
  for (size_t i = 8; i < x.size(); ++i) {
    const double want = std::tanh(static_cast<double>(x[i]));
    worst = std::max(worst, std::fabs(y[i] - want) / ulp_of(want));
    ASSERT_LE(std::fabs(y[i]), 1.0f) << x[i];
  }
  EXPECT_LE(worst, 2.0);
}

#if defined(TILEWISE_X86)
TEST(SimdBf16, WordsPairNeighboursAndMultiplyThem) {
  if (best_isa() < CpuIsa::kAvx512Bf16) GTEST_SKIP() << "this processor has no avx512bf16";
  const Table& t = avx512bf16_table();
  const PhiloxStream random(19);
  for (uint64_t trial = 0; trial < 2000; ++trial) {
    Block even, odd, acc;
    for (uint64_t i = 0; i < kCount; ++i) {
      even.x[i] = (static_cast<float>(random.word(trial * 64 + i) >> 8) * 0x1p-23f - 1.0f);
      odd.x[i] = (static_cast<float>(random.word(trial * 64 + 16 + i) >> 8) * 0x1p-23f - 1.0f);
      acc.x[i] = (static_cast<float>(random.word(trial * 64 + 32 + i) >> 8) * 0x1p-23f - 1.0f);
    }
    alignas(64) uint32_t words[kCount];
    t.pair(even.x, odd.x, words);
    alignas(64) uint16_t rounded[kCount];
    t.store_rounded(even.x, rounded);
    for (int i = 0; i < kCount; ++i) {
      ASSERT_EQ(words[i] & 0xffffu, bf16_of_float(even.x[i])) << i;
      ASSERT_EQ(words[i] >> 16, bf16_of_float(odd.x[i])) << i;
      ASSERT_EQ(rounded[i], bf16_of_float(even.x[i])) << i;
    }
    const uint32_t word = words[trial % kCount];
    Block got = acc;
    t.mac_words(&word, words, got.x);
    for (int i = 0; i < kCount; ++i) {
      const auto low = [](uint32_t w) { return double{float_of_bf16(static_cast<uint16_t>(w))}; };
      const double want =
          acc.x[i] + low(word) * low(words[i]) + low(word >> 16) * low(words[i] >> 16);
      ASSERT_NEAR(got.x[i], want, 4e-7) << i;
    }
  }
}
#endif

}  // namespace
}  // namespace tilewise::cpu::simd_test
