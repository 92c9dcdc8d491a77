#include "cuda/tile/tile_copy.cuh"

#include <algorithm>

#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr uint16_t kPoison = 0xffff;

// Loads one tile and gives out what is in it, row by row; and how many threads called each of its
// chunks their own.
template <int kRows, int kCols, int kThreads>
__global__ void load(const uint16_t* from, int64_t stride, int rows, int dim, bool elements,
                     uint16_t* to, int* owners) {
  using Copy = cuda::TileCopy<kThreads, kRows, kCols>;
  __shared__ SmemTile<kRows, kCols> tile;
  for (int i = threadIdx.x; i < kRows * kCols; i += kThreads) tile.data[i] = kPoison;
  __syncthreads();
  const uint16_t* mine = Copy::source(from, stride);
  if (elements) {
    Copy::elements(tile, mine, stride, dim, rows);
  } else {
    Copy::some(tile, mine, stride, dim, rows);
  }
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<0>();
  Copy::for_own(tile, [&](const uint4& chunk) {
    atomicAdd(owners + (&chunk - reinterpret_cast<const uint4*>(tile.data)), 1);
  });
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kCols; i += kThreads) {
    to[i] = tile.data[tile.offset(i / kCols, i % kCols / 8) + i % 8];
  }
}

class TileCopies : public DeviceTest {
 protected:
  // Rows that are missing: the last one again, or with elements zeros. Chunks beyond dim: as they
  // were, or zeros.
  template <int kRows, int kCols, int kThreads>
  static void check() {
    for (const bool elements : {false, true}) {
      for (const int dim : {elements ? 5 : 8, elements ? 33 : 40, kCols}) {
        for (const int rows : {1, 7, kRows - 1, kRows}) {
          const int64_t stride = dim + (elements ? 3 : 8);
          const int shift = elements ? 5 : 8;
          std::vector<uint16_t> matrix(shift + rows * stride + 8, kPoison);
          for (int i = 0; i < rows * dim; ++i) {
            matrix[shift + i / dim * stride + i % dim] = static_cast<uint16_t>(i % 60000);
          }
          const DeviceArray<uint16_t> from(matrix), to(kRows * kCols);
          const DeviceArray<int> owners(std::vector<int>(kRows * kCols / 8, 0));
          load<kRows, kCols, kThreads><<<1, kThreads>>>(from.data() + shift, stride, rows, dim,
                                                        elements, to.data(), owners.data());
          std::vector<uint16_t> want(kRows * kCols);
          for (int i = 0; i < kRows * kCols; ++i) {
            const int row = elements ? i / kCols : std::min(i / kCols, rows - 1), x = i % kCols;
            want[i] = x < dim && row < rows ? matrix[shift + row * stride + x]
                      : elements            ? 0
                                            : kPoison;
          }
          EXPECT_TRUE(to.get() == want) << kRows << "x" << kCols << " rows " << rows << " dim "
                                        << dim << (elements ? " by elements" : "");
          EXPECT_EQ(owners.get(), std::vector<int>(kRows * kCols / 8, 1)) << kRows << "x" << kCols;
        }
      }
    }
  }
};

TEST_F(TileCopies, RowsChunksAndOwners) {
  check<128, 64, 128>();
  check<64, 96, 128>();
  check<32, 128, 128>();
  check<64, 128, 128>();
  check<64, 192, 128>();
  check<64, 256, 128>();
}

}  // namespace
}  // namespace tilewise::cuda::test
