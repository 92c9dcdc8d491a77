#include "cuda/ptx/ldmatrix.cuh"

#include "cuda/tile/smem_tile.cuh"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

// Element (row, column) of matrix i of the four has this value.
int value_at(int i, int row, int column) { return 1000 * i + 10 * row + column; }

template <bool kTransposed>
__global__ void load_four(const uint16_t* matrices, uint32_t* out) {
  __shared__ alignas(16) uint16_t shared[4 * 64];
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 4 * 64; i += 32) shared[i] = matrices[i];
  __syncwarp();
  uint32_t fragment[4];
  if constexpr (kTransposed) {
    ptx::ldmatrix_x4_trans(fragment, smem_address(shared + 8 * lane));
  } else {
    ptx::ldmatrix_x4(fragment, smem_address(shared + 8 * lane));
  }
  for (int i = 0; i < 4; ++i) out[4 * lane + i] = fragment[i];
}

class Ldmatrix : public DeviceTest {
 protected:
  template <bool kTransposed>
  std::vector<uint32_t> load() {
    std::vector<uint16_t> matrices;
    for (int x = 0; x < 4 * 64; ++x) {
      matrices.push_back(static_cast<uint16_t>(value_at(x / 64, x / 8 % 8, x % 8)));
    }
    const DeviceArray<uint16_t> source(matrices);
    const DeviceArray<uint32_t> target(4 * 32);
    load_four<kTransposed><<<1, 32>>>(source.data(), target.data());
    return target.get();
  }
};

TEST_F(Ldmatrix, ALaneHoldsTwoElementsOfARow) {
  const std::vector<uint32_t> got = load<false>();
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4, column = 2 * (lane % 4);
      EXPECT_EQ(got[4 * lane + i] & 0xffff, value_at(i, row, column)) << lane << " " << i;
      EXPECT_EQ(got[4 * lane + i] >> 16, value_at(i, row, column + 1)) << lane << " " << i;
    }
  }
}

TEST_F(Ldmatrix, TransposedALaneHoldsTwoElementsOfAColumn) {
  const std::vector<uint32_t> got = load<true>();
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int column = lane / 4, row = 2 * (lane % 4);
      EXPECT_EQ(got[4 * lane + i] & 0xffff, value_at(i, row, column)) << lane << " " << i;
      EXPECT_EQ(got[4 * lane + i] >> 16, value_at(i, row + 1, column)) << lane << " " << i;
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda::test
