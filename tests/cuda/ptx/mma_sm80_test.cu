#include "cuda/ptx/mma_sm80.cuh"

#include "core/numeric.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

// a (16, 16), b (16, 8) and d (16, 8), all row-major here; the fragments as the header describes
// them.
template <DType kType>
__global__ void multiply(const uint16_t* a, const uint16_t* b, float* d) {
  const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4 * 2;
  const auto pair = [](uint16_t low, uint16_t high) {
    return static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16;
  };
  const auto a_pair = [&](int row, int col) {
    return pair(a[16 * row + col], a[16 * row + col + 1]);
  };
  const auto b_pair = [&](int row, int col) {
    return pair(b[8 * row + col], b[8 * (row + 1) + col]);
  };
  const uint32_t left[4] = {a_pair(g, t), a_pair(g + 8, t), a_pair(g, t + 8), a_pair(g + 8, t + 8)};
  float sum[4] = {d[8 * g + t], d[8 * g + t + 1], d[8 * (g + 8) + t], d[8 * (g + 8) + t + 1]};
  ptx::mma_m16n8k16<kType>(sum, left, b_pair(t, g), b_pair(t + 8, g));
  d[8 * g + t] = sum[0];
  d[8 * g + t + 1] = sum[1];
  d[8 * (g + 8) + t] = sum[2];
  d[8 * (g + 8) + t + 1] = sum[3];
}

class Mma : public DeviceTest {
 protected:
  // Whole numbers, so that every order of addition gives the same bits.
  template <DType kType>
  static void check() {
    const auto element = [](int x) {
      const float value = static_cast<float>(x);
      return kType == DType::kBf16 ? bf16_of_float(value) : fp16_of_float(value);
    };
    std::vector<uint16_t> a, b;
    std::vector<float> d, want;
    const auto a_at = [](int i, int k) { return (7 * i + 3 * k) % 17 - 8; };
    const auto b_at = [](int k, int j) { return (5 * k + 11 * j) % 13 - 6; };
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < 16; ++k) a.push_back(element(a_at(i, k)));
    }
    for (int k = 0; k < 16; ++k) {
      for (int j = 0; j < 8; ++j) b.push_back(element(b_at(k, j)));
    }
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        int sum = 100 * i - j;
        d.push_back(static_cast<float>(sum));
        for (int k = 0; k < 16; ++k) sum += a_at(i, k) * b_at(k, j);
        want.push_back(static_cast<float>(sum));
      }
    }
    const DeviceArray<uint16_t> left(a), right(b);
    const DeviceArray<float> sums(d);
    multiply<kType><<<1, 32>>>(left.data(), right.data(), sums.data());
    EXPECT_EQ(sums.get(), want);
  }
};

TEST_F(Mma, BFloat16) { check<DType::kBf16>(); }
TEST_F(Mma, Half) { check<DType::kFp16>(); }

}  // namespace
}  // namespace tilewise::cuda::test
