// Register tiles of one warp, in the layout of mma.sync, and the products between them.
#pragma once

#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma_sm80.cuh"
#include "cuda/tile/smem_tile.cuh"

namespace tilewise::cuda {

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % 32; }
// A value that is the same in the whole warp: the compiler does not see it without help, and keeps
// what follows from it in each lane's registers instead of in those of the warp.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }
__device__ __forceinline__ uint64_t uniform(uint64_t x) {
  return __shfl_sync(0xffffffffu, static_cast<unsigned long long>(x), 0);
}
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) / 32; }

// An fp32 accumulator of 16 kRowAtoms x 8 kColAtoms. This lane holds two rows of each row atom and
// two adjacent columns of each column atom.
template <int kRowAtoms, int kColAtoms>
struct Accumulator {
  static constexpr int kRows = 2 * kRowAtoms;  // of a lane
  static constexpr int kCols = 2 * kColAtoms;

  float c[kRowAtoms][kColAtoms][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < kRowAtoms; ++m) {
#pragma unroll
      for (int n = 0; n < kColAtoms; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) c[m][n][i] = 0.0f;
      }
    }
  }
  // Element of the lane's row r, column j.
  __device__ __forceinline__ float& at(int r, int j) {
    return c[r / 2][j / 2][2 * (r % 2) + j % 2];
  }
  __device__ __forceinline__ float at(int r, int j) const {
    return c[r / 2][j / 2][2 * (r % 2) + j % 2];
  }
  // Where they stand in the tile.
  static __device__ __forceinline__ int row(int r) {
    return 16 * (r / 2) + 8 * (r % 2) + lane_id() / 4;
  }
  static __device__ __forceinline__ int col(int j) {
    return 8 * (j / 2) + 2 * (lane_id() % 4) + j % 2;
  }
};

// Lane address of a left operand (16 rows, 16 columns) from a tile whose rows are its rows;
// SmemTile::advance() moves it by whole atoms.
template <int kRows, int kCols>
__device__ __forceinline__ uint32_t left_address(const SmemTile<kRows, kCols>& tile, int row) {
  return tile.address(row + lane_id() % 16, lane_id() / 16);
}

// The transpose of the 4 x 4 words of a quad: word i of lane t becomes word t of lane i. Where lane
// t has word t of four chunks of 16 bytes, it has chunk t afterwards.
__device__ __forceinline__ uint4 quad_transposed(uint4 x) {
  const bool odd = lane_id() % 2 != 0, high = lane_id() % 4 >= 2;
  const auto exchange = [](bool upper, uint32_t& a, uint32_t& b, int lanes) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? a : b, lanes);
    (upper ? a : b) = other;
  };
  exchange(high, x.x, x.z, 2);
  exchange(high, x.y, x.w, 2);
  exchange(odd, x.x, x.y, 1);
  exchange(odd, x.z, x.w, 1);
  return x;
}

}  // namespace tilewise::cuda
