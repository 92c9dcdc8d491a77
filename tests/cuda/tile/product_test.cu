// Products whose operands come from shared memory, against three nested loops.
#include "cuda/tile/product.cuh"

#include <algorithm>

#include "core/numeric.h"
#include "tests/cuda/elements.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

enum Left { kLeftRows, kLeftColumns, kLeftRegisters };
enum Right { kTransposed, kRightRows };

template <int kRows, int kCols>
__device__ void fill(SmemTile<kRows, kCols>& tile, const uint16_t* from) {
  for (int i = threadIdx.x; i < kRows * kCols; i += blockDim.x) {
    tile.data[tile.offset(i / kCols, i % kCols / 8) + i % 8] = from[i];
  }
}

// Where column j of what a warp has stands in the whole result.
__device__ int column_of(int j, int warps, int share) {
  return 16 * (j / 16 * warps + share) + j % 16;
}

// out (16 kRowAtoms, columns) += left right, by kShare warps, each part of whose columns has
// kColAtoms atoms. left and right are operands at an offset in tiles (kLRows, kLCols) and (kRRows,
// kRCols); kLeftRegisters: the tile is the operand, and its elements reach the registers a little
// too small, to be rounded up again.
template <DType kType, Left kLeft, int kLRows, int kLCols, Right kRight, int kRRows, int kRCols,
          int kShare, int kRowAtoms, int kColAtoms, int kSteps>
__global__ void multiply(const uint16_t* left, int left_at, const uint16_t* right, int right_at,
                         const float* registers, float* out, int columns) {
  using L = SmemTile<kLRows, kLCols>;
  using R = SmemTile<kRRows, kRCols>;
  using Acc = Accumulator<kRowAtoms, kColAtoms>;
  using Operand = Accumulator<kRowAtoms, 2 * kSteps>;
  extern __shared__ __align__(128) uint4 shared[];
  L& l = *reinterpret_cast<L*>(shared);
  R& r = *reinterpret_cast<R*>(&l + 1);
  fill(l, left);
  fill(r, right);
  __syncthreads();
  for (int part = 0; part < columns / (8 * kColAtoms * kShare); ++part) {
    const int share = warp_id() + part * kShare * (kColAtoms / 2);
    Acc acc;
    for (int i = 0; i < Acc::kRows; ++i) {
      for (int j = 0; j < Acc::kCols; ++j) {
        acc.at(i, j) = out[Acc::row(i) * columns + column_of(Acc::col(j), kShare, share)];
      }
    }
    const auto times = [&](const auto& a) {
      if constexpr (kRight == kTransposed) {
        product<kType, kSteps>(acc, a, RightTransposed(r, right_at));
      } else {
        product<kType, kSteps>(acc, a, RightRows<kShare, R>(r, right_at, share));
      }
    };
    if constexpr (kLeft == kLeftRows) times(LeftRows(l, left_at));
    if constexpr (kLeft == kLeftColumns) times(LeftColumns(l, left_at));
    if constexpr (kLeft == kLeftRegisters) {
      Operand a;
      for (int i = 0; i < Operand::kRows; ++i) {
        for (int j = 0; j < Operand::kCols; ++j) {
          a.at(i, j) = registers[Operand::row(i) * 16 * kSteps + Operand::col(j)];
        }
      }
      times(LeftRegisters<kType, Operand>{a});
    }
    for (int i = 0; i < Acc::kRows; ++i) {
      for (int j = 0; j < Acc::kCols; ++j) {
        out[Acc::row(i) * columns + column_of(Acc::col(j), kShare, share)] = acc.at(i, j);
      }
    }
  }
}

// Whole numbers, whose products add up to the same bits in any order.
std::vector<int> whole_numbers(int count, int seed) {
  std::vector<int> values;
  for (int i = 0; i < count; ++i) values.push_back((i + seed) * 37 % 101 % 9 - 4);
  return values;
}
template <DType kType>
std::vector<uint16_t> elements(const std::vector<int>& values) {
  std::vector<uint16_t> out;
  for (const int x : values) out.push_back(element<kType>(static_cast<float>(x)));
  return out;
}

class Products : public DeviceTest {
 protected:
  template <DType kType, Left kLeft, int kLRows, int kLCols, Right kRight, int kRRows, int kRCols,
            int kShare, int kRowAtoms, int kColAtoms, int kSteps>
  static void check(int left_at, int right_at) {
    constexpr int kRows = 16 * kRowAtoms, kInner = 16 * kSteps;
    const int columns = kRight == kTransposed ? 8 * kColAtoms : kRCols;
    const std::vector<int> left = whole_numbers(kLRows * kLCols, 1),
                           right = whole_numbers(kRRows * kRCols, 5);
    const auto l = [&](int i, int k) {
      return kLeft == kLeftColumns ? left[k * kLCols + left_at + i]
                                   : left[(left_at + i) * kLCols + k];
    };
    const auto r = [&](int k, int j) {
      return kRight == kTransposed ? right[(right_at + j) * kRCols + k]
                                   : right[(right_at + k) * kRCols + j];
    };
    std::vector<float> before, want, registers(kRows * kInner);
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < columns; ++j) {
        int sum = 3 * i - j;
        before.push_back(static_cast<float>(sum));
        for (int k = 0; k < kInner; ++k) sum += l(i, k) * r(k, j);
        want.push_back(static_cast<float>(sum));
      }
      for (int k = 0; kLeft == kLeftRegisters && k < kInner; ++k) {
        registers[i * kInner + k] = static_cast<float>(l(i, k)) * (1.0f - 0x1p-13f);
      }
    }
    const DeviceArray<uint16_t> l_gmem(elements<kType>(left)), r_gmem(elements<kType>(right));
    const DeviceArray<float> a(registers), out(before);
    const auto kernel = multiply<kType, kLeft, kLRows, kLCols, kRight, kRRows, kRCols, kShare,
                                 kRowAtoms, kColAtoms, kSteps>;
    constexpr int kBytes = 2 * (kLRows * kLCols + kRRows * kRCols);
    require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    kernel<<<1, 32 * kShare, kBytes>>>(l_gmem.data(), left_at, r_gmem.data(), right_at, a.data(),
                                       out.data(), columns);
    EXPECT_TRUE(out.get() == want) << "left " << kLeft << " " << kLRows << "x" << kLCols << " at "
                                   << left_at << ", right " << kRight << " " << kRRows << "x"
                                   << kRCols << " at " << right_at << ", " << kShare << " warps";
  }

  // The shapes of the backward's products for every head dim.
  template <DType kType>
  static void check_all() {
    // S^T and dP^T: keys by queries, over the head dim.
    check<kType, kLeftRows, 128, 64, kTransposed, 64, 64, 1, 2, 4, 4>(96, 32);
    check<kType, kLeftRows, 64, 96, kTransposed, 64, 96, 1, 1, 8, 6>(48, 0);
    check<kType, kLeftRows, 64, 128, kTransposed, 64, 128, 1, 1, 2, 8>(16, 48);
    check<kType, kLeftRows, 64, 192, kTransposed, 64, 192, 1, 2, 2, 12>(32, 16);
    check<kType, kLeftRows, 64, 256, kTransposed, 64, 256, 1, 2, 2, 16>(32, 48);
    // dV and dK from registers: keys by the head dim, over some of the queries.
    check<kType, kLeftRegisters, 32, 32, kRightRows, 64, 64, 1, 2, 8, 2>(0, 32);
    check<kType, kLeftRegisters, 16, 64, kRightRows, 64, 96, 1, 1, 12, 4>(0, 0);
    check<kType, kLeftRegisters, 16, 32, kRightRows, 64, 128, 1, 1, 16, 1>(0, 48);
    // dV and dK through shared memory: the head dim in shares.
    check<kType, kLeftRows, 128, 64, kRightRows, 64, 128, 2, 2, 8, 4>(64, 0);
    check<kType, kLeftRows, 64, 64, kRightRows, 64, 192, 4, 2, 6, 4>(32, 0);
    check<kType, kLeftRows, 64, 64, kRightRows, 64, 256, 4, 2, 8, 2>(0, 32);
    // dQ: queries by the head dim, over the keys; two parts of it where the atoms are many.
    check<kType, kLeftColumns, 128, 64, kRightRows, 128, 64, 2, 2, 4, 8>(32, 0);
    check<kType, kLeftColumns, 64, 64, kRightRows, 64, 96, 2, 2, 6, 4>(0, 0);
    check<kType, kLeftColumns, 64, 64, kRightRows, 64, 128, 1, 1, 8, 4>(16, 0);
    check<kType, kLeftColumns, 128, 64, kRightRows, 128, 128, 2, 1, 4, 8>(48, 0);
    check<kType, kLeftColumns, 64, 64, kRightRows, 64, 192, 4, 2, 6, 4>(32, 0);
    check<kType, kLeftColumns, 64, 64, kRightRows, 64, 256, 4, 2, 4, 2>(32, 32);
  }
};

TEST_F(Products, BFloat16) { check_all<DType::kBf16>(); }
TEST_F(Products, Half) { check_all<DType::kFp16>(); }

// Values of the accumulators of kShare warps; none is exact in 16 bits.
__host__ __device__ float value_at(int row, int column) {
  return 1.0f / static_cast<float>(3 + 7 * row + column);
}

template <DType kType, int kShare, int kRows, int kCols, int kRowAtoms>
__global__ void store(int row, uint16_t* to) {
  using Acc = Accumulator<kRowAtoms, kCols / 8 / kShare>;
  __shared__ SmemTile<kRows, kCols> tile;
  for (int i = threadIdx.x; i < kRows * kCols; i += blockDim.x) tile.data[i] = 0xffff;
  __syncthreads();
  Acc acc;
  for (int i = 0; i < Acc::kRows; ++i) {
    for (int j = 0; j < Acc::kCols; ++j) {
      acc.at(i, j) = value_at(Acc::row(i), column_of(Acc::col(j), kShare, warp_id()));
    }
  }
  store_accumulator<kType, kShare>(tile, row, warp_id(), acc);
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kCols; i += blockDim.x) {
    to[i] = tile.data[tile.offset(i / kCols, i % kCols / 8) + i % 8];
  }
}

template <DType kType, int kShare, int kRows, int kCols, int kRowAtoms>
void check_store() {
  for (int row = 0; row + 16 * kRowAtoms <= kRows; row += 16 * kRowAtoms) {
    const DeviceArray<uint16_t> to(kRows * kCols);
    store<kType, kShare, kRows, kCols, kRowAtoms><<<1, 32 * kShare>>>(row, to.data());
    std::vector<uint16_t> want(kRows * kCols, 0xffff);
    for (int i = 0; i < 16 * kRowAtoms; ++i) {
      for (int j = 0; j < kCols; ++j) {
        want[(row + i) * kCols + j] = element<kType>(value_at(i, j));
      }
    }
    EXPECT_TRUE(to.get() == want) << kShare << " warps, " << kRows << "x" << kCols << " row "
                                  << row;
  }
}

template <DType kType>
void check_stores() {
  check_store<kType, 1, 64, 64, 1>();
  check_store<kType, 1, 128, 64, 2>();
  check_store<kType, 1, 64, 96, 1>();
  check_store<kType, 2, 128, 128, 2>();
  check_store<kType, 2, 64, 96, 1>();
  check_store<kType, 4, 64, 192, 2>();
  check_store<kType, 4, 64, 256, 2>();
}

TEST_F(Products, StoresRoundIntoTheirRowsAndColumns) {
  check_stores<DType::kBf16>();
  check_stores<DType::kFp16>();
}

template <int kShare>
__global__ void list_atoms(int* atoms) {
  const int n = static_cast<int>(threadIdx.x), share = static_cast<int>(blockIdx.x);
  atoms[share * blockDim.x + n] = shared_column_atom<kShare>(n, share);
}

// Pairs of atoms go round the warps.
template <int kShare>
void check_atoms() {
  constexpr int kAtoms = 6;
  const DeviceArray<int> atoms(kShare * kAtoms);
  list_atoms<kShare><<<kShare, kAtoms>>>(atoms.data());
  std::vector<int> got = atoms.get();
  for (int i = 0; i < kShare * kAtoms; ++i) EXPECT_EQ(got[i] / 2 % kShare, i / kAtoms) << i;
  EXPECT_TRUE(std::is_sorted(got.begin(), got.begin() + kAtoms));
  std::sort(got.begin(), got.end());
  for (int i = 0; i < kShare * kAtoms; ++i) EXPECT_EQ(got[i], i);
}

TEST_F(Products, SharesOfTheColumnAtoms) {
  check_atoms<1>();
  check_atoms<2>();
  check_atoms<4>();
}

}  // namespace
}  // namespace tilewise::cuda::test
