// Values that are not finite, in keys that some rows do not see.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/numeric.h"
#include "cuda/common/scores.cuh"
#include "cuda/tile/tile_copy.cuh"
#include "tests/cuda/elements.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

template <DType kType>
bool bad(uint16_t x) {
  return !std::isfinite(value<kType>(x));
}

template <DType kType>
__global__ void classify(uint32_t* out) {  // pairs of a pattern and its complement
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = not_finite<kType>(i | (~i << 16));
}

class Values : public DeviceTest {
 protected:
  template <DType kType>
  static void check_not_finite() {
    const DeviceArray<uint32_t> out(1 << 16);
    classify<kType><<<256, 256>>>(out.data());
    const std::vector<uint32_t> got = out.get();
    for (uint32_t i = 0; i < 1 << 16; ++i) {
      const uint32_t want = (bad<kType>(static_cast<uint16_t>(i)) ? 0x8000u : 0) |
                            (bad<kType>(static_cast<uint16_t>(~i)) ? 0x80000000u : 0);
      ASSERT_EQ(got[i], want) << i;
    }
  }
  template <DType kType>
  static void check_hide_values();
};

TEST_F(Values, NotFiniteOfEveryPattern) {
  check_not_finite<DType::kBf16>();
  check_not_finite<DType::kFp16>();
}

constexpr int kRows = 64, kCols = 96, kThreads = 128;

template <DType kType>
__global__ void hide(uint16_t* values, int* answers) {
  __shared__ SmemTile<kRows, kCols> tile;
  for (int i = threadIdx.x; i < kRows * kCols; i += kThreads) tile.data[i] = values[i];
  __syncthreads();
  answers[threadIdx.x] = hide_values<kType, TileCopy<kThreads, kRows, kCols>>(tile);
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kCols; i += kThreads) values[i] = tile.data[i];
}

template <DType kType>
void Values::check_hide_values() {
  std::vector<uint16_t> values;
  for (int i = 0; i < kRows * kCols; ++i) {  // the largest finite ones among them
    const uint16_t largest = kType == DType::kBf16 ? 0xff7f : 0x7bff;
    values.push_back(i % 10 == 0 ? largest : static_cast<uint16_t>(i));
  }
  const DeviceArray<uint16_t> tile(values);
  const DeviceArray<int> answers(kThreads);
  hide<kType><<<1, kThreads>>>(tile.data(), answers.data());
  EXPECT_TRUE(tile.get() == values);
  EXPECT_EQ(answers.get(), std::vector<int>(kThreads, 0));

  const uint16_t infinity = kType == DType::kBf16 ? 0x7f80 : 0x7c00;
  for (const int at : {0, 1, 777, 3000, kRows * kCols - 1}) {
    for (const int bits : {0, 1, 0x8000}) {  // inf, NaN, -inf
      std::vector<uint16_t> given = values, want = values;
      given[at] = static_cast<uint16_t>(infinity | bits);
      want[at] = 0;
      tile.set(given);
      hide<kType><<<1, kThreads>>>(tile.data(), answers.data());
      EXPECT_TRUE(tile.get() == want) << at << " " << bits;
      const std::vector<int> said = answers.get();
      EXPECT_EQ(std::count(said.begin(), said.end(), 1), 1) << at << " " << bits;
    }
  }
}

TEST_F(Values, HiddenOnesBecomeZeroAndTheirThreadKnows) {
  check_hide_values<DType::kBf16>();
  check_hide_values<DType::kFp16>();
}

// Marks what the rows of one block show of the keys [begin, end).
template <DType kType>
__global__ void mark(ForwardParams p, int first_row, int rows, int begin, int end, int* marks) {
  Place at = {};
  at.n_q = p.seqlen_q;
  at.n_k = p.seqlen_k;
  at.first_row = first_row;
  at.rows = rows;
  mark_outputs<kType, kThreads>(p, at, begin, end,
                                [&](int row, int x) { atomicAdd(marks + row * p.v.dim + x, 1); });
}

TEST_F(Values, OutputsOfRowsThatSeeOneAreMarked) {
  constexpr int kQueries = 200, kKeys = 230, kDim = 7, kFirst = 64, kCount = 100;
  std::vector<uint16_t> v(kKeys * kDim, 0x3c00);
  v[3 * kDim + 2] = 0x7c00;
  v[120 * kDim] = 0x7e00;
  v[120 * kDim + 6] = 0xfc00;
  v[229 * kDim + 1] = 0x7c01;
  const DeviceArray<uint16_t> values(v);
  for (const MaskSpec& mask : {MaskSpec{kUnbounded, 0}, MaskSpec{20, 5}, MaskSpec{}}) {
    for (const auto& [begin, end] : {std::pair(0, 256), std::pair(64, 128)}) {
      ForwardParams p;
      p.v.data = values.data();
      p.v.seqlen = p.v.dim = kDim;
      p.seqlen_q = kQueries;
      p.seqlen_k = kKeys;
      p.mask = mask;
      const DeviceArray<int> marks(std::vector<int>(kCount * kDim, 0));
      mark<DType::kFp16><<<1, kThreads>>>(p, kFirst, kCount, begin, end, marks.data());
      const std::vector<int> got = marks.get();
      for (int i = 0; i < kCount * kDim; ++i) {
        int want = 0;
        for (int key = begin; key < std::min(end, kKeys); ++key) {
          want += mask.visible(kFirst + i / kDim, key, Lengths{kQueries, kKeys}) &&
                  bad<DType::kFp16>(v[key * kDim + i % kDim]);
        }
        EXPECT_EQ(got[i], want) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda::test
