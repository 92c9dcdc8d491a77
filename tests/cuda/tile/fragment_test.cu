// The products of fragments against three nested loops.
#include "cuda/tile/fragment.cuh"

#include <cmath>

#include "core/numeric.h"
#include "cuda/tile/product.cuh"
#include "tests/cuda/elements.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

template <int kRows, int kCols>
__device__ void fill(SmemTile<kRows, kCols>& tile, const uint16_t* from) {
  for (int i = threadIdx.x; i < kRows * kCols; i += blockDim.x) {
    tile.data[tile.offset(i / kCols, i % kCols / 8) + i % 8] = from[i];
  }
}

// Every warp's accumulator, by the places that it says it holds.
template <class Accumulator>
__device__ void dump(const Accumulator& x, int first_row, int cols, float* to) {
  for (int r = 0; r < Accumulator::kRows; ++r) {
    for (int j = 0; j < Accumulator::kCols; ++j) {
      to[(first_row + Accumulator::row(r)) * cols + Accumulator::col(j)] = x.at(r, j);
    }
  }
}

// s = q k^T, q (kRows, kCols) and k (8 kColAtoms, kCols).
template <DType kType, int kRowAtoms, int kColAtoms, int kRows, int kCols>
__global__ void scores(const uint16_t* q, const uint16_t* k, float* s) {
  extern __shared__ uint4 shared[];
  auto& q_smem = *reinterpret_cast<SmemTile<kRows, kCols>*>(shared);
  auto& k_smem = *reinterpret_cast<SmemTile<8 * kColAtoms, kCols>*>(&q_smem + 1);
  fill(q_smem, q);
  fill(k_smem, k);
  __syncthreads();
  const int first_row = warp_id() * 16 * kRowAtoms;
  Accumulator<kRowAtoms, kColAtoms> s_frag;
  s_frag.clear();
  product<kType, kCols / 16>(s_frag, LeftRows(q_smem, first_row), RightTransposed(k_smem, 0));
  dump(s_frag, first_row, 8 * kColAtoms, s);
}

// o += p v, p (kRows, 8 kKeyAtoms) in fp32 and v (8 kKeyAtoms, 8 kColAtoms).
template <DType kType, int kRowAtoms, int kKeyAtoms, int kColAtoms>
__global__ void output(const float* p, const uint16_t* v, float* o) {
  extern __shared__ uint4 shared[];
  auto& v_smem = *reinterpret_cast<SmemTile<8 * kKeyAtoms, 8 * kColAtoms>*>(shared);
  fill(v_smem, v);
  __syncthreads();
  const int first_row = warp_id() * 16 * kRowAtoms;
  Accumulator<kRowAtoms, kKeyAtoms> p_frag;
  for (int r = 0; r < p_frag.kRows; ++r) {
    for (int j = 0; j < p_frag.kCols; ++j) {
      p_frag.at(r, j) = p[(first_row + p_frag.row(r)) * 8 * kKeyAtoms + p_frag.col(j)];
    }
  }
  Accumulator<kRowAtoms, kColAtoms> o_frag;
  o_frag.clear();
  using Value = SmemTile<8 * kKeyAtoms, 8 * kColAtoms>;
  for (int twice = 0; twice < 2; ++twice) {
    product<kType, kKeyAtoms / 2>(o_frag, LeftRegisters<kType, decltype(p_frag)>{p_frag},
                                  RightRows<1, Value>(v_smem, 0, 0));
  }
  dump(o_frag, first_row, 8 * kColAtoms, o);
}

// Whole numbers, whose products add up to the same bits in any order.
template <DType kType>
std::vector<uint16_t> whole_numbers(int count, int seed) {
  std::vector<uint16_t> values;
  for (int i = 0; i < count; ++i) {
    values.push_back(element<kType>(static_cast<float>((i + seed) * 37 % 101 % 9 - 4)));
  }
  return values;
}

template <class Kernel>
void allow(Kernel kernel, int bytes) {
  require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

class Fragments : public DeviceTest {
 protected:
  template <DType kType, int kRowAtoms, int kColAtoms, int kWarps, int kCols>
  static void check_scores() {
    constexpr int kRows = 16 * kRowAtoms * kWarps, kKeys = 8 * kColAtoms;
    const auto q = whole_numbers<kType>(kRows * kCols, 1);
    const auto k = whole_numbers<kType>(kKeys * kCols, 5);
    std::vector<float> want(kRows * kKeys);
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kKeys; ++j) {
        for (int x = 0; x < kCols; ++x) {
          want[i * kKeys + j] += value<kType>(q[i * kCols + x]) * value<kType>(k[j * kCols + x]);
        }
      }
    }
    const DeviceArray<uint16_t> q_gmem(q), k_gmem(k);
    const DeviceArray<float> s(std::vector<float>(want.size(), NAN));
    const auto kernel = scores<kType, kRowAtoms, kColAtoms, kRows, kCols>;
    const int bytes = 2 * kCols * (kRows + kKeys);
    allow(kernel, bytes);
    kernel<<<1, 32 * kWarps, bytes>>>(q_gmem.data(), k_gmem.data(), s.data());
    EXPECT_TRUE(s.get() == want) << kRows << " x " << kKeys << " x " << kCols;
  }

  template <DType kType, int kRowAtoms, int kKeyAtoms, int kWarps, int kColAtoms>
  static void check_output() {
    constexpr int kRows = 16 * kRowAtoms * kWarps, kKeys = 8 * kKeyAtoms, kCols = 8 * kColAtoms;
    const auto v = whole_numbers<kType>(kKeys * kCols, 3);
    std::vector<float> p;  // not of the element type: they are rounded to it
    for (int i = 0; i < kRows * kKeys; ++i) p.push_back(1.0f / static_cast<float>(1 + i * 31 % 97));
    const DeviceArray<float> p_gmem(p), o(std::vector<float>(kRows * kCols, NAN));
    const DeviceArray<uint16_t> v_gmem(v);
    const auto kernel = output<kType, kRowAtoms, kKeyAtoms, kColAtoms>;
    const int bytes = 2 * kKeys * kCols;
    allow(kernel, bytes);
    kernel<<<1, 32 * kWarps, bytes>>>(p_gmem.data(), v_gmem.data(), o.data());
    const std::vector<float> got = o.get();
    double worst = 0;
    for (int i = 0; i < kRows; ++i) {
      for (int x = 0; x < kCols; ++x) {
        double want = 0, magnitude = 0;
        for (int j = 0; j < kKeys; ++j) {
          const double term =
              2.0 * value<kType>(element<kType>(p[i * kKeys + j])) * value<kType>(v[j * kCols + x]);
          want += term;
          magnitude += std::abs(term);
        }
        const double error = std::abs(got[i * kCols + x] - want) / (magnitude + 1e-30);
        worst = error >= worst ? error : std::isnan(error) ? INFINITY : worst;
      }
    }
    EXPECT_LE(worst, 1e-6) << kRows << " x " << kCols << " x " << kKeys;
  }

  template <DType kType>
  static void check_all() {
    check_scores<kType, 1, 8, 4, 64>();
    check_scores<kType, 2, 8, 4, 64>();
    check_scores<kType, 2, 8, 4, 96>();
    check_scores<kType, 2, 16, 4, 128>();
    check_scores<kType, 1, 8, 8, 192>();
    check_scores<kType, 1, 8, 8, 256>();
    check_output<kType, 1, 8, 4, 8>();
    check_output<kType, 2, 8, 4, 12>();
    check_output<kType, 2, 8, 4, 16>();
    check_output<kType, 2, 16, 4, 8>();
    check_output<kType, 1, 8, 8, 24>();
    check_output<kType, 1, 8, 8, 32>();
  }
};

TEST_F(Fragments, ProductsInBFloat16) { check_all<DType::kBf16>(); }
TEST_F(Fragments, ProductsInHalf) { check_all<DType::kFp16>(); }

}  // namespace
}  // namespace tilewise::cuda::test
