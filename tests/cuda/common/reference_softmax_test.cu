// Softmax sums whose references hardly move, against sums in double.
#include "cuda/common/reference_softmax.cuh"

#include <algorithm>
#include <cmath>

#include "core/numeric.h"
#include "cuda/tile/fragment.cuh"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr int kRows = 16, kKeys = 32, kTiles = 3;
using Scores = Accumulator<1, kKeys / 8>;

struct Result {
  float lse, factor;
  uint32_t bad;
};

// One warp: the rows of kTiles tiles of scores. The reference is set by the first one and, for
// `moving`, moved by the others.
template <DType kType>
__global__ void softmax(const float* scores, float scale, bool moving, Result* results) {
  ReferenceSoftmax<kType, Scores::kRows> rows;
  for (int tile = 0; tile < kTiles; ++tile) {
    Scores s;
    for (int r = 0; r < s.kRows; ++r) {
      for (int j = 0; j < s.kCols; ++j) {
        s.at(r, j) = scores[(tile * kRows + s.row(r)) * kKeys + s.col(j)];
      }
    }
    const auto highest = highest_exponents(s, scale);
    if (tile == 0) {
      rows.start(highest);
    } else if (moving) {
      rows.move(highest);
    } else {
      rows.give_up_without_reference(~0u);
    }
    rows.exponentiate(s, scale);
  }
  rows.join_lanes();
  Rows<Scores::kRows> lse;
  const Rows<Scores::kRows> factor = rows.finalize(&lse);
  const uint32_t bad = rows.out_of_range();
  for (int r = 0; r < Scores::kRows; ++r) {
    if (lane_id() % 4 == 0) results[Scores::row(r)] = {lse.x[r], factor.x[r], bad >> r & 1};
  }
}

class ReferenceSoftmaxOnDevice : public DeviceTest {
 protected:
  std::vector<float> scores_ = std::vector<float>(kTiles * kRows * kKeys);

  void SetUp() override {
    DeviceTest::SetUp();
    for (size_t i = 0; i < scores_.size(); ++i) scores_[i] = 3.0f * std::sin(0.7f * float(i));
  }
  float& score(int tile, int row, int key) { return scores_[(tile * kRows + row) * kKeys + key]; }
  template <DType kType>
  std::vector<Result> run(bool moving, float scale = 1.0f) const {
    const DeviceArray<float> scores(scores_);
    const DeviceArray<Result> results(kRows);
    softmax<kType><<<1, 32>>>(scores.data(), scale, moving, results.data());
    return results.get();
  }
  double lse(int row, double scale = 1.0) {
    double sum = 0.0;
    for (int tile = 0; tile < kTiles; ++tile) {
      for (int key = 0; key < kKeys; ++key) sum += std::exp2(scale * score(tile, row, key));
    }
    return std::log(sum);
  }
};

TEST_F(ReferenceSoftmaxOnDevice, SumsDoNotDependOnTheReference) {
  for (const bool moving : {false, true}) {
    for (const float scale : {1.0f, 0.3f}) {
      const std::vector<Result> got = run<DType::kBf16>(moving, scale);
      for (int row = 0; row < kRows; ++row) {
        EXPECT_NEAR(got[row].lse, lse(row, scale), 2e-6) << row;
        EXPECT_EQ(got[row].bad, 0) << row;
      }
    }
  }
}

TEST_F(ReferenceSoftmaxOnDevice, RowsThatLeaveTheRangeAreToldApart) {
  score(2, 3, 5) = 20.0f;   // 2^17 times the first tile's highest
  score(1, 4, 9) = 100.0f;  // 2^97 times
  score(1, 6, 1) = NAN;
  for (int key = 0; key < kKeys; ++key) score(0, 7, key) = -INFINITY;
  for (int tile = 0; tile < kTiles; ++tile) {
    for (int key = 0; key < kKeys; ++key) score(tile, 8, key) = -INFINITY;
  }
  const std::vector<Result> bf16 = run<DType::kBf16>(false), fp16 = run<DType::kFp16>(false);
  const std::vector<Result> moved = run<DType::kFp16>(true);
  for (int row = 0; row < kRows; ++row) {
    EXPECT_EQ(bf16[row].bad, row == 4 || (row >= 6 && row <= 8)) << row;
    EXPECT_EQ(fp16[row].bad, row == 3 || row == 4 || (row >= 6 && row <= 8)) << row;
    if (row == 6) {
      EXPECT_TRUE(std::isnan(moved[row].lse));
    } else if (row == 8) {
      EXPECT_EQ(moved[row].lse, -INFINITY);
      EXPECT_EQ(moved[row].factor, 0.0f);
    } else {
      EXPECT_EQ(moved[row].bad, 0) << row;
      EXPECT_NEAR(moved[row].lse, lse(row), 4e-6 * std::max(1.0, lse(row))) << row;
    }
  }
}

// One weight is all of the sum: O, that weight as the tensor core gets it times v, is divided by
// that weight.
TEST_F(ReferenceSoftmaxOnDevice, TheLargestWeightIsDividedByItself) {
  for (int row = 0; row < kRows; ++row) score(1, row, row) = 40.0f + 0.13f * float(row);
  for (const bool moving : {false, true}) {
    const std::vector<Result> got = run<DType::kBf16>(moving);
    for (int row = 0; row < kRows; ++row) {
      // The factor is 1 over a number of bf16, but for what the other weights add: 2^-35 of it.
      const float sum = 1.0f / got[row].factor;
      EXPECT_NEAR(sum / float_of_bf16(bf16_of_float(sum)), 1.0, 2e-7) << row;
      EXPECT_NEAR(got[row].lse, lse(row), 4e-6 * lse(row)) << row;
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda::test
