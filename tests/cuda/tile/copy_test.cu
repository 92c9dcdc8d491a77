#include "cuda/tile/copy.cuh"

#include <utility>

#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr uint16_t kPoison = 0xffff;

enum class Copy { kTile, kVectorRows, kElementRows };

// Loads one tile and gives out what is in it, row by row.
template <Copy kCopy, int kRows, int kCols, int kThreads>
__global__ void load(const uint16_t* from, int64_t stride, int rows, int dim, uint16_t* to) {
  __shared__ SmemTile<kRows, kCols> tile;
  for (int i = threadIdx.x; i < kRows * kCols; i += kThreads) tile.data[i] = kPoison;
  __syncthreads();
  const auto row = [&](int r) { return from + r * stride; };
  if constexpr (kCopy == Copy::kTile) {
    if (rows == kRows) {
      load_tile<kThreads, true>(tile, from, stride, rows, dim);
    } else {
      load_tile<kThreads, false>(tile, from, stride, rows, dim);
    }
  } else {
    load_rows<kCopy == Copy::kVectorRows, kThreads>(tile, row, rows, dim);
  }
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<0>();
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kCols; i += kThreads) {
    to[i] = tile.data[tile.offset(i / kCols, i % kCols / 8) + i % 8];
  }
}

uint16_t value_at(int row, int column) { return static_cast<uint16_t>(1 + 300 * row + column); }

// `rows` rows of `dim` elements, `stride` apart from element `shift` on; poison all around.
std::vector<uint16_t> matrix(int shift, int rows, int dim, int64_t stride) {
  std::vector<uint16_t> values(shift + (rows + 1) * stride, kPoison);
  for (int r = 0; r < rows; ++r) {
    for (int x = 0; x < dim; ++x) values[shift + r * stride + x] = value_at(r, x);
  }
  return values;
}

class TileLoads : public DeviceTest {
 protected:
  template <Copy kCopy, int kRows, int kCols, int kThreads>
  static void check_load() {
    for (const int dim : {1, 7, 8, 33, kCols - 1, kCols}) {
      for (const int rows : {1, 7, kRows - 1, kRows}) {
        const bool vectors = kCopy != Copy::kElementRows;
        const int64_t stride = vectors ? (dim + 7) / 8 * 8 + 8 : dim + 3;
        const int shift = vectors ? 8 : 5;
        const DeviceArray<uint16_t> from(matrix(shift, rows, dim, stride)), to(kRows * kCols);
        load<kCopy, kRows, kCols, kThreads>
            <<<1, kThreads>>>(from.data() + shift, stride, rows, dim, to.data());
        std::vector<uint16_t> want(kRows * kCols);
        for (int i = 0; i < kRows * kCols; ++i) {
          const bool there = i / kCols < rows && i % kCols < dim;
          want[i] = there ? value_at(i / kCols, i % kCols) : 0;
        }
        EXPECT_TRUE(to.get() == want) << kRows << "x" << kCols << " rows " << rows << " dim " << dim
                                      << " copy " << static_cast<int>(kCopy);
      }
    }
  }
  template <int kRows, int kCols, int kThreads>
  static void check_loads() {
    check_load<Copy::kTile, kRows, kCols, kThreads>();
    check_load<Copy::kVectorRows, kRows, kCols, kThreads>();
    check_load<Copy::kElementRows, kRows, kCols, kThreads>();
  }
};

TEST_F(TileLoads, LoadsFillUpWithZeros) {
  check_loads<64, 64, 128>();
  check_loads<128, 64, 128>();
  check_loads<64, 96, 128>();
  check_loads<64, 128, 128>();
  check_loads<64, 192, 256>();
  check_loads<64, 256, 256>();
}

// Rows [begin, end) of a tile by one warp.
template <int kRows, int kCols>
__global__ void store(uint16_t* to, int64_t stride, int begin, int end, int dim, bool vectors) {
  __shared__ SmemTile<kRows, kCols> tile;
  for (int i = threadIdx.x; i < kRows * kCols; i += 32) {
    const int row = i / kCols, column = i % kCols;
    tile.data[tile.offset(row, column / 8) + i % 8] = static_cast<uint16_t>(1 + 300 * row + column);
  }
  __syncwarp();
  store_rows(
      tile, [&](int r) { return to + r * stride; }, begin, end, dim, vectors);
}

template <int kRows, int kCols>
void check_store() {
  for (const int dim : {1, 7, 8, 33, kCols - 1, kCols}) {
    for (const bool vectors : {false, true}) {
      for (const auto& [begin, end] : {std::pair(0, kRows), std::pair(16, 29), std::pair(5, 5)}) {
        const int64_t stride = vectors ? (dim + 7) / 8 * 8 + 8 : dim + 3;
        const int shift = vectors ? 8 : 5;
        std::vector<uint16_t> want(shift + (kRows + 1) * stride, kPoison);
        const DeviceArray<uint16_t> to(want);
        store<kRows, kCols><<<1, 32>>>(to.data() + shift, stride, begin, end, dim, vectors);
        for (int r = begin; r < end; ++r) {
          for (int x = 0; x < dim; ++x) want[shift + r * stride + x] = value_at(r, x);
        }
        EXPECT_TRUE(to.get() == want) << kRows << "x" << kCols << " rows " << begin << " to " << end
                                      << " dim " << dim << " vectors " << vectors;
      }
    }
  }
}

TEST_F(TileLoads, StoresWriteTheirElementsOnly) {
  check_store<128, 64>();
  check_store<64, 96>();
  check_store<64, 128>();
  check_store<64, 192>();
  check_store<32, 256>();
}

}  // namespace
}  // namespace tilewise::cuda::test
