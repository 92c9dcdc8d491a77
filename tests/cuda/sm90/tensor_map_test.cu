// Boxes of a strided tensor by the copy engine: where their elements lie in a swizzled tile, what
// lies beyond the tensor, and that nothing is written there. Skipped but on sm_90.
#include "cuda/sm90/tensor_map.h"

#include <algorithm>

#include "cuda/ptx/tma.cuh"
#include "cuda/tile/pipeline.cuh"
#include "cuda/tile/swizzled_tile.cuh"
#include "tests/cuda/sm90/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr int kRows = 64, kCols = 128;
constexpr int kDim = 72, kSeqlen = 50, kHeads = 3, kBatch = 2;  // less than a box holds

// The tile of a head, to `tile` as rows of kCols, and from shared memory to another tensor.
__global__ void through_smem(const __grid_constant__ TensorMap from,
                             const __grid_constant__ TensorMap to, int row, int head, int batch,
                             uint16_t* tile) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char shared_1024[];
  using Tile = SwizzledTile<kRows, kCols>;
  auto& smem = *reinterpret_cast<Tile*>(shared_1024);
  __shared__ Barrier full;
  if (threadIdx.x == 0) {
    full.init(1);
    ptx::fence_mbarrier_init();
    full.arrive_expecting(Tile::kBytes);
    for (int i = 0; i < Tile::kParts; ++i) {
      ptx::tma_load(smem.part(i), &from, {64 * i, row, head, batch}, full.address());
    }
  }
  __syncthreads();
  full.wait(0);
  for (int i = threadIdx.x; i < kRows * kCols; i += blockDim.x) {
    tile[i] = smem.data[Tile::offset(i / kCols, i % kCols / 8) + i % 8];
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kParts; ++i) {
      ptx::tma_store(&to, {64 * i, row, head, batch}, smem.part(i));
    }
    ptx::tma_commit_group();
    ptx::tma_wait_written();
  }
#endif
}

TensorRef tensor(uint16_t* data) {  // (batch, head, seqlen, dim) in memory, rows of 80 elements
  TensorRef x;
  x.data = data;
  x.seqlen = 80;
  x.head = 80 * kSeqlen;
  x.batch = 80 * kSeqlen * kHeads + 160;
  x.dim = kDim;
  x.vectors = true;
  return x;
}
constexpr size_t kElements = kBatch * (80 * kSeqlen * kHeads + 160);

class TensorMaps : public HopperTest {};

TEST_F(TensorMaps, ABoxLiesWhereTheTileSaysAndEndsWithTheTensor) {
  std::vector<uint16_t> values(kElements);
  for (size_t i = 0; i < kElements; ++i) values[i] = static_cast<uint16_t>(1 + i % 60000);
  const DeviceArray<uint16_t> from(values), to(std::vector<uint16_t>(kElements, 7)),
      tile(kRows * kCols);
  const TensorRef x = tensor(from.data()), y = tensor(to.data());
  TensorMap from_map, to_map;
  for (TensorMap* map : {&from_map, &to_map}) {
    ASSERT_TRUE(sm90::make_tensor_map(map, map == &from_map ? x : y, DType::kBf16, kSeqlen, kHeads,
                                      kBatch, kRows));
  }
  const int head = 1, batch = 1, row = 8;
  constexpr int kBytes = sizeof(SwizzledTile<kRows, kCols>);
  through_smem<<<1, 128, kBytes>>>(from_map, to_map, row, head, batch, tile.data());
  const std::vector<uint16_t> got = tile.get(), written = to.get();
  std::vector<uint16_t> want_written(kElements, 7);
  int different = 0;
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kCols; ++c) {
      uint16_t want = 0;
      if (row + r < kSeqlen && c < kDim) {
        const size_t at =
            static_cast<size_t>(batch * x.batch + head * x.head + (row + r) * x.seqlen + c);
        want = want_written[at] = values[at];
      }
      different += got[r * kCols + c] != want;
    }
  }
  EXPECT_EQ(different, 0);
  EXPECT_TRUE(written == want_written);
}

TEST_F(TensorMaps, RowsOfOtherAddressesAreRefused) {
  const DeviceArray<uint16_t> data(kElements);
  TensorRef x = tensor(data.data());
  TensorMap map;
  x.vectors = false;
  EXPECT_FALSE(sm90::make_tensor_map(&map, x, DType::kBf16, kSeqlen, kHeads, kBatch, kRows));
  x = tensor(data.data());
  x.batch = int64_t{1} << 40;
  EXPECT_FALSE(sm90::make_tensor_map(&map, x, DType::kBf16, kSeqlen, kHeads, kBatch, kRows));
}

}  // namespace
}  // namespace tilewise::cuda::test
