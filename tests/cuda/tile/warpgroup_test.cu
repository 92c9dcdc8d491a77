// The products of a warpgroup against three nested loops. Skipped but on sm_90.
#include "cuda/tile/warpgroup.cuh"

#include <cmath>

#include "core/numeric.h"
#include "cuda/tile/rows.cuh"
#include "tests/cuda/sm90/support.h"

namespace tilewise::cuda::test {
namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <int kRows, int kCols>
__device__ void fill(SwizzledTile<kRows, kCols>& tile, const uint16_t* from) {
  for (int i = threadIdx.x; i < kRows * kCols; i += blockDim.x) {
    tile.data[tile.offset(i / kCols, i % kCols / 8) + i % 8] = from[i];
  }
}

template <class Accumulator>
__device__ void dump(const Accumulator& x, int cols, float* to) {
  for (int r = 0; r < Accumulator::kRows; ++r) {
    for (int j = 0; j < Accumulator::kCols; ++j) {
      to[(warp_row() + Accumulator::row(r)) * cols + Accumulator::col(j)] = x.at(r, j);
    }
  }
}
#endif

// s = q k^T for q (64, kCols) and k (kKeys, kCols), q from shared memory or registers; o = s v for
// v (kKeys, kCols), from what was there or not; o_16 is 2 o in the element type.
template <DType kType, int kKeys, int kCols, bool kRegisters>
__global__ void __launch_bounds__(128)
    products(const uint16_t* q, const uint16_t* k, const uint16_t* v, float* s, float* o, int old,
             uint16_t* o_16) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char shared_1024[];
  auto& q_smem = *reinterpret_cast<SwizzledTile<64, kCols>*>(shared_1024);
  auto& k_smem = *reinterpret_cast<SwizzledTile<kKeys, kCols>*>(&q_smem + 1);
  auto& v_smem = *reinterpret_cast<SwizzledTile<kKeys, kCols>*>(&k_smem + 1);
  fill(q_smem, q);
  fill(k_smem, k);
  fill(v_smem, v);
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
  __syncthreads();
  WarpgroupAccumulator<kKeys / 8> s_frag;
  if constexpr (kRegisters) {
    WarpgroupOperand<kCols / 16> q_frag;
    load_operand(q_frag, q_smem);
    begin_product<kType>(s_frag, q_frag, summed_columns(k_smem), 0);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    pin(q_frag);
  } else {
    begin_product<kType>(s_frag, summed_columns(q_smem), summed_columns(k_smem), 0);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
  }
  pin(s_frag);
  dump(s_frag, kKeys, s);
  WarpgroupOperand<kKeys / 16> p_frag;
  pack<kType>(p_frag, s_frag);
  WarpgroupAccumulator<kCols / 8> o_frag;
  o_frag.clear();
  for (int r = 0; r < o_frag.kRows; ++r) {
    for (int j = 0; j < o_frag.kCols; ++j) o_frag.at(r, j) = 3.0f;
  }
  begin_product<kType>(o_frag, p_frag, summed_rows(v_smem), old);
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
  pin(o_frag);
  pin(p_frag);
  dump(o_frag, kCols, o);
  store_scaled<kType>(q_smem, o_frag, Rows<2>{2.0f, 2.0f});
  __syncthreads();
  for (int i = threadIdx.x; i < 64 * kCols; i += blockDim.x) {
    o_16[i] = q_smem.data[q_smem.offset(i / kCols, i % kCols / 8) + i % 8];
  }
#endif
}

// d = a^T b of columns [64 a_part, ...) of a (128, kCols) and columns [64 b_part, ...) of b (128,
// kCols), both in shared memory; e = rows [64, 128) of a times rows [64, 128) of b, transposed. a
// gets there by way of registers.
template <DType kType, int kCols>
__global__ void __launch_bounds__(128)
    products_of_parts(const uint16_t* a, const uint16_t* b, int a_part, int b_part, float* d,
                      float* e) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Tile = SwizzledTile<128, kCols>;
  extern __shared__ __align__(1024) unsigned char shared_1024[];
  auto& a_smem = *reinterpret_cast<Tile*>(shared_1024);
  auto& b_smem = *reinterpret_cast<Tile*>(&a_smem + 1);
  auto& half = *reinterpret_cast<SwizzledTile<64, kCols>*>(&b_smem + 1);
  fill(b_smem, b);
  for (const int row : {0, 64}) {
    __syncthreads();
    fill(half, a + row * kCols);
    __syncthreads();
    WarpgroupOperand<kCols / 16> rows;
    load_operand(rows, half);
    store_operand<Tile>(lane_address(a_smem, row), rows);
  }
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
  __syncthreads();
  WarpgroupAccumulator<8> d_frag, e_frag;
  begin_product<kType>(d_frag, summed_rows(a_smem, a_part), summed_rows(b_smem, b_part), 0);
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
  pin(d_frag);
  dump(d_frag, 64, d);
  __syncthreads();
  fill(half, b + 64 * kCols);
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
  __syncthreads();
  begin_product<kType>(e_frag, summed_columns(a_smem, 64), summed_columns(half), 0);
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
  pin(e_frag);
  dump(e_frag, 64, e);
#endif
}

template <DType kType>
uint16_t element(float x) {
  return kType == DType::kBf16 ? bf16_of_float(x) : fp16_of_float(x);
}

// -1, 0 and 1, so that scores are whole numbers that both types have.
std::vector<float> signs(int count, int seed) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) {
    values.push_back(static_cast<float>((i + seed) * 37 % 101 % 3 - 1));
  }
  return values;
}
template <DType kType>
std::vector<uint16_t> rounded(const std::vector<float>& x) {
  std::vector<uint16_t> y;
  for (const float value : x) y.push_back(element<kType>(value));
  return y;
}

class Warpgroups : public HopperTest {
 protected:
  template <DType kType, int kKeys, int kCols, bool kRegisters>
  static void check(int old) {
    const auto q = signs(64 * kCols, 1), k = signs(kKeys * kCols, 5), v = signs(kKeys * kCols, 9);
    std::vector<float> s(64 * kKeys), o(64 * kCols, old != 0 ? 3.0f : 0.0f);
    for (int i = 0; i < 64; ++i) {
      for (int j = 0; j < kKeys; ++j) {
        for (int x = 0; x < kCols; ++x) s[i * kKeys + j] += q[i * kCols + x] * k[j * kCols + x];
        for (int x = 0; x < kCols; ++x) o[i * kCols + x] += s[i * kKeys + j] * v[j * kCols + x];
      }
    }
    const DeviceArray<uint16_t> q_gmem(rounded<kType>(q)), k_gmem(rounded<kType>(k)),
        v_gmem(rounded<kType>(v)), o_16(o.size());
    const DeviceArray<float> s_gmem(std::vector<float>(s.size(), NAN)),
        o_gmem(std::vector<float>(o.size(), NAN));
    const auto kernel = products<kType, kKeys, kCols, kRegisters>;
    constexpr int kBytes = sizeof(SwizzledTile<64, kCols>) + 2 * sizeof(SwizzledTile<kKeys, kCols>);
    require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    kernel<<<1, 128, kBytes>>>(q_gmem.data(), k_gmem.data(), v_gmem.data(), s_gmem.data(),
                               o_gmem.data(), old, o_16.data());
    EXPECT_TRUE(s_gmem.get() == s) << kKeys << " x " << kCols;
    EXPECT_TRUE(o_gmem.get() == o) << kKeys << " x " << kCols;
    for (float& x : o) x *= 2.0f;
    EXPECT_TRUE(o_16.get() == rounded<kType>(o)) << kKeys << " x " << kCols;
  }
};

TEST_F(Warpgroups, ProductsOfTheForwardsTiles) {
  check<DType::kBf16, 128, 64, true>(0);
  check<DType::kFp16, 128, 64, false>(1);
  check<DType::kBf16, 128, 96, false>(0);
  check<DType::kFp16, 128, 96, true>(1);
  check<DType::kBf16, 128, 128, false>(1);
  check<DType::kFp16, 128, 128, true>(0);
  check<DType::kBf16, 80, 192, false>(1);
  check<DType::kFp16, 80, 192, false>(0);
  check<DType::kBf16, 48, 256, false>(0);
}

template <DType kType, int kCols>
void check_parts(int a_part, int b_part) {
  const auto a = signs(128 * kCols, 2), b = signs(128 * kCols, 7);
  std::vector<float> d(64 * 64), e(64 * 64);
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 64; ++j) {
      for (int k = 0; k < 128; ++k) {
        d[i * 64 + j] += a[k * kCols + 64 * a_part + i] * b[k * kCols + 64 * b_part + j];
      }
      for (int x = 0; x < kCols; ++x) {
        e[i * 64 + j] += a[(64 + i) * kCols + x] * b[(64 + j) * kCols + x];
      }
    }
  }
  const DeviceArray<uint16_t> a_gmem(rounded<kType>(a)), b_gmem(rounded<kType>(b));
  const DeviceArray<float> d_gmem(std::vector<float>(d.size(), NAN)),
      e_gmem(std::vector<float>(e.size(), NAN));
  const auto kernel = products_of_parts<kType, kCols>;
  constexpr int kBytes = 2 * sizeof(SwizzledTile<128, kCols>) + sizeof(SwizzledTile<64, kCols>);
  require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  kernel<<<1, 128, kBytes>>>(a_gmem.data(), b_gmem.data(), a_part, b_part, d_gmem.data(),
                             e_gmem.data());
  EXPECT_TRUE(d_gmem.get() == d) << kCols << " columns, parts " << a_part << ", " << b_part;
  EXPECT_TRUE(e_gmem.get() == e) << kCols << " columns";
}

TEST_F(Warpgroups, ProductsOfTheBackwardsTiles) {
  check_parts<DType::kBf16, 64>(0, 0);
  check_parts<DType::kFp16, 128>(0, 1);
  check_parts<DType::kBf16, 128>(1, 0);
  check_parts<DType::kFp16, 128>(1, 1);
}

}  // namespace
}  // namespace tilewise::cuda::test
