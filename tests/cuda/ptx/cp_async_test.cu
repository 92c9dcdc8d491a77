#include "cuda/ptx/cp_async.cuh"

#include "cuda/tile/smem_tile.cuh"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr int kPieces = 17;  // piece i copies i bytes of its 16

__global__ void copy_pieces(const uint8_t* from, uint8_t* to) {
  __shared__ alignas(16) uint8_t shared[16 * kPieces];
  for (int i = threadIdx.x; i < 16 * kPieces; i += blockDim.x) shared[i] = 0xee;
  __syncthreads();
  const int piece = static_cast<int>(threadIdx.x);
  if (piece < kPieces) {
    ptx::cp_async_16(smem_address(shared + 16 * piece), from + 16 * piece, piece);
  }
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<0>();
  __syncthreads();
  for (int i = threadIdx.x; i < 16 * kPieces; i += blockDim.x) to[i] = shared[i];
}

class CpAsync : public DeviceTest {};

TEST_F(CpAsync, BytesThatAreNotCopiedAreZero) {
  std::vector<uint8_t> from(16 * kPieces), want(from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<uint8_t>(i % 250 + 1);
    want[i] = i % 16 < i / 16 ? from[i] : 0;
  }
  const DeviceArray<uint8_t> source(from), target(from.size());
  copy_pieces<<<1, 32>>>(source.data(), target.data());
  EXPECT_EQ(target.get(), want);
}

// Each thread reads its piece of the older group while the newer one may still be under way.
__global__ void wait_for_the_older(const uint4* from, uint4* to) {
  __shared__ uint4 shared[2][128];
  const int i = static_cast<int>(threadIdx.x);
  shared[0][i] = shared[1][i] = make_uint4(~0u, ~0u, ~0u, ~0u);
  for (int group = 0; group < 2; ++group) {
    const int64_t at = (int64_t{group} * gridDim.x + blockIdx.x) * 128 + i;
    ptx::cp_async_16(smem_address(&shared[group][i]), from + at, 16);
    ptx::cp_async_commit_group();
  }
  ptx::cp_async_wait_group<1>();
  to[int64_t{blockIdx.x} * 128 + i] = shared[0][i];
  ptx::cp_async_wait_group<0>();
  to[(int64_t{gridDim.x} + blockIdx.x) * 128 + i] = shared[1][i];
}

TEST_F(CpAsync, WaitsForAllButTheNewestGroups) {
  constexpr int kBlocks = 1000, kWords = 2 * kBlocks * 128 * 4;
  std::vector<uint32_t> from(kWords);
  for (int i = 0; i < kWords; ++i) from[i] = static_cast<uint32_t>(i);
  const DeviceArray<uint32_t> source(from), target(from.size());
  wait_for_the_older<<<kBlocks, 128>>>(reinterpret_cast<const uint4*>(source.data()),
                                       reinterpret_cast<uint4*>(target.data()));
  EXPECT_TRUE(target.get() == from);
}

}  // namespace
}  // namespace tilewise::cuda::test
