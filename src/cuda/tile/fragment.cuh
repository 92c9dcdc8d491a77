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
__device__ __forceinline__ int warp_id() { return uniform(static_cast<int>(threadIdx.x) / 32); }

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

// Lane addresses of fragments; SmemTile::advance() moves them by whole atoms.
//
// A left operand (16 rows, 16 columns) from a tile whose rows are its rows.
template <int kRows, int kCols>
__device__ __forceinline__ uint32_t left_address(const SmemTile<kRows, kCols>& tile, int row) {
  return tile.address(row + lane_id() % 16, lane_id() / 16);
}
// Right operands of two column atoms (16 rows, 16 columns) from a tile whose rows are their
// columns, for ldmatrix_x4: b[0], b[1] are those of the first 8 columns.
template <int kRows, int kCols>
__device__ __forceinline__ uint32_t right_transposed_address(const SmemTile<kRows, kCols>& tile) {
  return tile.address(lane_id() % 8 + lane_id() / 16 * 8, lane_id() / 8 % 2);
}
// The same from a tile whose rows are their rows, for ldmatrix_x4_trans.
template <int kRows, int kCols>
__device__ __forceinline__ uint32_t right_address(const SmemTile<kRows, kCols>& tile) {
  return tile.address(lane_id() % 16, lane_id() / 16);
}

// s = q k^T for this warp's rows [first_row, ...) of q and all rows of k.
template <DType kType, int kRowAtoms, int kColAtoms, int kRows, int kCols>
__device__ __forceinline__ void multiply_transposed(Accumulator<kRowAtoms, kColAtoms>& s,
                                                    const SmemTile<kRows, kCols>& q, int first_row,
                                                    const SmemTile<8 * kColAtoms, kCols>& k) {
  using Q = SmemTile<kRows, kCols>;
  using K = SmemTile<8 * kColAtoms, kCols>;
  const uint32_t q_lane = left_address(q, first_row), k_lane = right_transposed_address(k);
  s.clear();
  // The operands of one product are on their way while the one before runs.
  constexpr int kPairs = kColAtoms / 2, kSteps = kCols / 16;
  uint32_t a[2][kRowAtoms][4], b[2][4];
#pragma unroll
  for (int m = 0; m < kRowAtoms; ++m) ptx::ldmatrix_x4(a[0][m], Q::advance(q_lane, 16 * m, 0));
  ptx::ldmatrix_x4(b[0], k_lane);
#pragma unroll
  for (int x = 0; x < kSteps; ++x) {
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      const int at = x * kPairs + n, next = at + 1;
      if (next < kSteps * kPairs) {
        ptx::ldmatrix_x4(b[next % 2],
                         K::advance(k_lane, 16 * (next % kPairs), 2 * (next / kPairs)));
      }
      if (n == 0 && x + 1 < kSteps) {
#pragma unroll
        for (int m = 0; m < kRowAtoms; ++m) {
          ptx::ldmatrix_x4(a[(x + 1) % 2][m], Q::advance(q_lane, 16 * m, 2 * (x + 1)));
        }
      }
#pragma unroll
      for (int m = 0; m < kRowAtoms; ++m) {
        ptx::mma_m16n8k16<kType>(s.c[m][2 * n], a[x % 2][m], b[at % 2][0], b[at % 2][1]);
        ptx::mma_m16n8k16<kType>(s.c[m][2 * n + 1], a[x % 2][m], b[at % 2][2], b[at % 2][3]);
      }
    }
  }
}

// o += p v, with p rounded to the element type. The accumulator layout of p is the layout of a left
// operand, so p never leaves the registers.
template <DType kType, int kRowAtoms, int kKeyAtoms, int kColAtoms>
__device__ __forceinline__ void accumulate(Accumulator<kRowAtoms, kColAtoms>& o,
                                           const Accumulator<kRowAtoms, kKeyAtoms>& p,
                                           const SmemTile<8 * kKeyAtoms, 8 * kColAtoms>& v) {
  using V = SmemTile<8 * kKeyAtoms, 8 * kColAtoms>;
  const uint32_t v_lane = right_address(v);
  constexpr int kPairs = kColAtoms / 2, kSteps = kKeyAtoms / 2;
  uint32_t b[2][4];
  ptx::ldmatrix_x4_trans(b[0], v_lane);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    uint32_t a[kRowAtoms][4];
#pragma unroll
    for (int m = 0; m < kRowAtoms; ++m) {
      const float(&left)[4] = p.c[m][2 * k];
      const float(&right)[4] = p.c[m][2 * k + 1];
      a[m][0] = ptx::pack<kType>(left[0], left[1]);
      a[m][1] = ptx::pack<kType>(left[2], left[3]);
      a[m][2] = ptx::pack<kType>(right[0], right[1]);
      a[m][3] = ptx::pack<kType>(right[2], right[3]);
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int at = k * kPairs + i, next = at + 1;
      if (next < kSteps * kPairs) {
        ptx::ldmatrix_x4_trans(b[next % 2],
                               V::advance(v_lane, 16 * (next / kPairs), 2 * (next % kPairs)));
      }
#pragma unroll
      for (int m = 0; m < kRowAtoms; ++m) {
        ptx::mma_m16n8k16<kType>(o.c[m][2 * i], a[m], b[at % 2][0], b[at % 2][1]);
        ptx::mma_m16n8k16<kType>(o.c[m][2 * i + 1], a[m], b[at % 2][2], b[at % 2][3]);
      }
    }
  }
}

}  // namespace tilewise::cuda
