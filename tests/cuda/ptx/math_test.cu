#include "cuda/ptx/math.cuh"

#include <cmath>
#include <cstring>
#include <limits>

#include "core/numeric.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

__global__ void exp2_each(const float* x, float* y, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += blockDim.x) y[i] = ptx::exp2(x[i]);
}

// The largest relative error of exp2 over the floats with patterns [first, last], against fp64, in
// units of 2^-40.
__global__ void exp2_worst(uint32_t first, uint32_t last, unsigned long long* worst) {
  double most = 0;
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = first + uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i <= last; i += step) {
    const float x = float_of_bits(static_cast<uint32_t>(i));
    const double want = ::exp2(static_cast<double>(x));
    most = fmax(most, fabs(static_cast<double>(ptx::exp2(x)) - want) / want);
  }
  atomicMax(worst, static_cast<unsigned long long>(most * 0x1p40));
}

class PtxMath : public DeviceTest {
 protected:
  static std::vector<float> exp2_of(const std::vector<float>& x) {
    const DeviceArray<float> from(x), to(x.size());
    exp2_each<<<1, 256>>>(from.data(), to.data(), static_cast<int>(x.size()));
    return to.get();
  }
};

TEST_F(PtxMath, Exp2OfEveryFloatWithANormalResult) {
  const DeviceArray<unsigned long long> worst(std::vector<unsigned long long>{0});
  exp2_worst<<<1024, 256>>>(0, bits_of_float(127.99999f), worst.data());
  exp2_worst<<<1024, 256>>>(bits_of_float(-0.0f), bits_of_float(-125.99999f), worst.data());
  const double error = static_cast<double>(worst.get()[0]) * 0x1p-40;
  EXPECT_LE(error, 0x1p-22);
  EXPECT_GT(error, 0);
}

TEST_F(PtxMath, Exp2OfSpecialValues) {
  std::vector<float> whole;
  for (int n = -126; n <= 127; ++n) whole.push_back(static_cast<float>(n));
  const std::vector<float> powers = exp2_of(whole);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(powers[i], std::exp2(whole[i])) << whole[i];
  EXPECT_EQ(exp2_of({-kInfinity, -1e30f, -150.0f, -126.5f, -0.0f, 128.0f, 1e30f, kInfinity}),
            (std::vector<float>{0, 0, 0, 0, 1, kInfinity, kInfinity, kInfinity}));
  EXPECT_TRUE(std::isnan(exp2_of({std::numeric_limits<float>::quiet_NaN()})[0]));
}

// How many of all floats pack() rounds otherwise than the host's conversions, in either half.
template <DType kType>
__global__ void pack_mismatches(unsigned long long* count) {
  const auto same = [](uint32_t got, float x) {
    if constexpr (kType == DType::kBf16) {
      return x != x ? (got & 0x7fff) > 0x7f80 : got == bf16_of_float(x);
    } else {
      return x != x ? (got & 0x7fff) > 0x7c00 : got == fp16_of_float(x);
    }
  };
  unsigned long long bad = 0;
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < 1ull << 32; i += step) {
    const float low = float_of_bits(static_cast<uint32_t>(i));
    const float high = float_of_bits(static_cast<uint32_t>(i) * 2654435761u);  // all of them too
    const uint32_t pair = ptx::pack<kType>(low, high);
    bad += !same(pair & 0xffff, low) + !same(pair >> 16, high);
  }
  atomicAdd(count, bad);
}

TEST_F(PtxMath, PackRoundsEveryFloatToNearestEven) {
  const DeviceArray<unsigned long long> count(std::vector<unsigned long long>{0});
  pack_mismatches<DType::kBf16><<<1024, 256>>>(count.data());
  EXPECT_EQ(count.get()[0], 0u);
  pack_mismatches<DType::kFp16><<<1024, 256>>>(count.data());
  EXPECT_EQ(count.get()[0], 0u);
}

template <DType kType>
__global__ void unpack_each(float2* out) {  // pairs of a pattern and its complement
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = ptx::unpack<kType>(i | (~i << 16));
}

template <DType kType>
void check_unpack() {
  const DeviceArray<float2> out(1 << 16);
  unpack_each<kType><<<256, 256>>>(out.data());
  const std::vector<float2> got = out.get();
  const auto same = [](float x, uint32_t pattern) {
    const auto half = static_cast<uint16_t>(pattern);
    const float want = kType == DType::kBf16 ? float_of_bf16(half) : float_of_fp16(half);
    return std::isnan(want) ? std::isnan(x) : bits_of_float(x) == bits_of_float(want);
  };
  for (uint32_t i = 0; i < 1 << 16; ++i) {
    ASSERT_TRUE(same(got[i].x, i)) << i << ": " << got[i].x;
    ASSERT_TRUE(same(got[i].y, ~i)) << i << ": " << got[i].y;
  }
}

TEST_F(PtxMath, UnpackOfEveryPattern) {
  check_unpack<DType::kBf16>();
  check_unpack<DType::kFp16>();
}

}  // namespace
}  // namespace tilewise::cuda::test
