#include "cuda/tile/rows.cuh"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr int kCount = 4;  // rows of a lane
constexpr int kValues = 32 * kCount;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Ops = RowOps<kCount>;
using R = Rows<kCount>;

enum Verb {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kSet,
  kZero,
  kNegativeInfinity,
  kExp2,
  kLog2,
  kMax,
  kSelectEmpty,
  kSelectZero,
  kBeyond,
  kQuadMax,
  kQuadSum,
  kVerbs
};

// What each verb gives for rows a, b and c of one warp.
__global__ void apply(const float* values, float* out) {
  const int lane = static_cast<int>(threadIdx.x);
  R a, b, c;
  for (int i = 0; i < kCount; ++i) {
    a.x[i] = values[kCount * lane + i];
    b.x[i] = values[kValues + kCount * lane + i];
    c.x[i] = values[2 * kValues + kCount * lane + i];
  }
  R results[kVerbs];
  results[kAdd] = a + b;
  results[kSubtract] = a - b;
  results[kMultiply] = a * b;
  results[kDivide] = a / b;
  results[kSet] = Ops::set(1.5f);
  results[kZero] = Ops::zero();
  results[kNegativeInfinity] = Ops::negative_infinity();
  results[kExp2] = Ops::exp2(a);
  results[kLog2] = Ops::log2(b);
  results[kMax] = Ops::max(a, b);
  results[kSelectEmpty] = Ops::select_empty(a, b, c);
  results[kSelectZero] = Ops::select_zero(a, b, c);
  results[kBeyond] = Ops::beyond(a, c, 8.0f);
  results[kQuadMax] = Ops::quad_max(a);
  results[kQuadSum] = Ops::quad_sum(b);
  for (int verb = 0; verb < kVerbs; ++verb) {
    for (int i = 0; i < kCount; ++i) {
      out[verb * kValues + kCount * lane + i] = results[verb].x[i];
    }
  }
}

class RowsOnDevice : public DeviceTest {};

TEST_F(RowsOnDevice, EachVerb) {
  std::vector<float> values;
  for (int i = 0; i < kValues; ++i) {  // a: 0 and -inf are among them
    values.push_back(i % 7 == 0 ? -kInfinity : i % 5 == 0 ? 0.0f : static_cast<float>(i % 23 - 11));
  }
  for (int i = 0; i < kValues; ++i) values.push_back(static_cast<float>(1 << (i % 9)));  // b > 0
  for (int i = 0; i < kValues; ++i) values.push_back(static_cast<float>(i % 11 - 10));   // c
  const DeviceArray<float> in(values), out(size_t{kVerbs} * kValues);
  apply<<<1, 32>>>(in.data(), out.data());
  const std::vector<float> got = out.get();

  const auto a = [&](int i) { return values[i]; };
  const auto b = [&](int i) { return values[kValues + i]; };
  const auto c = [&](int i) { return values[2 * kValues + i]; };
  std::function<float(int)> want[kVerbs];
  want[kAdd] = [&](int i) { return a(i) + b(i); };
  want[kSubtract] = [&](int i) { return a(i) - b(i); };
  want[kMultiply] = [&](int i) { return a(i) * b(i); };
  want[kDivide] = [&](int i) { return a(i) / b(i); };
  want[kSet] = [&](int) { return 1.5f; };
  want[kZero] = [&](int) { return 0.0f; };
  want[kNegativeInfinity] = [&](int) { return -kInfinity; };
  want[kExp2] = [&](int i) { return std::exp2(a(i)); };  // of whole numbers: exact
  want[kLog2] = [&](int i) { return std::log2(b(i)); };
  want[kMax] = [&](int i) { return std::max(a(i), b(i)); };
  want[kSelectEmpty] = [&](int i) { return a(i) == -kInfinity ? b(i) : c(i); };
  want[kSelectZero] = [&](int i) { return a(i) == 0 ? b(i) : c(i); };
  want[kBeyond] = [&](int i) { return a(i) > c(i) + 8 ? a(i) : -kInfinity; };
  want[kQuadMax] = [&](int i) {
    float most = -kInfinity;
    for (int lane = 0; lane < 4; ++lane) most = std::max(most, a(i / 16 * 16 + 4 * lane + i % 4));
    return most;
  };
  want[kQuadSum] = [&](int i) {
    float sum = 0;
    for (int lane = 0; lane < 4; ++lane) sum += b(i / 16 * 16 + 4 * lane + i % 4);
    return sum;
  };
  for (int verb = 0; verb < kVerbs; ++verb) {
    for (int i = 0; i < kValues; ++i) {
      EXPECT_EQ(got[verb * kValues + i], want[verb](i)) << "verb " << verb << ", value " << i;
    }
  }
}

// The softmax that core and the CPU share, in this row type: scores in base 2, tile by tile.
__global__ void softmax_of(const float* scores, int tiles, float* lse, float* inverse) {
  const int lane = static_cast<int>(threadIdx.x);
  RowSoftmax<kCount> softmax;
  for (int tile = 0; tile < tiles; ++tile) {
    R s;
    for (int i = 0; i < kCount; ++i) s.x[i] = scores[tile * kValues + kCount * lane + i];
    softmax.update(s);
    softmax.sum = softmax.sum + Ops::exp2(s - softmax.shift());
  }
  R row_lse;
  const R factor = softmax.finalize(&row_lse);
  for (int i = 0; i < kCount; ++i) {
    lse[kCount * lane + i] = row_lse.x[i];
    inverse[kCount * lane + i] = factor.x[i];
  }
}

TEST_F(RowsOnDevice, SoftmaxOverTiles) {
  constexpr int kTiles = 9;
  std::vector<float> scores;
  for (int i = 0; i < kTiles * kValues; ++i) {
    const int row = i % kValues, tile = i / kValues;
    // Row 0 sees nothing at all, row 1 not in its first tiles; one row's scores are huge.
    const bool hidden = row == 0 || (row == 1 && tile < 4);
    const float size = row == 2 ? 1e6f : 10.0f;
    scores.push_back(hidden ? -kInfinity : size * std::sin(static_cast<float>(i)));
  }
  const DeviceArray<float> in(scores), lse(kValues), inverse(kValues);
  softmax_of<<<1, 32>>>(in.data(), kTiles, lse.data(), inverse.data());
  const std::vector<float> got_lse = lse.get(), got_inverse = inverse.get();
  for (int row = 0; row < kValues; ++row) {
    double most = -kInfinity, sum = 0;
    for (int tile = 0; tile < kTiles; ++tile) {
      most = std::max(most, double{scores[tile * kValues + row]});
    }
    for (int tile = 0; tile < kTiles && most > -kInfinity; ++tile) {
      sum += std::exp2(scores[tile * kValues + row] - most);
    }
    if (sum == 0) {
      EXPECT_EQ(got_lse[row], -kInfinity);
      EXPECT_EQ(got_inverse[row], 0);
      continue;
    }
    const double want = (most + std::log2(sum)) * std::log(2.0);
    EXPECT_NEAR(got_lse[row], want, 1e-6 * std::max(1.0, std::abs(want))) << row;
    EXPECT_NEAR(got_inverse[row], 1 / sum, 1e-6) << row;
  }
}

}  // namespace
}  // namespace tilewise::cuda::test
