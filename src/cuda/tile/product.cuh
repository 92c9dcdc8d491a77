// Products of one warp whose operands come from shared memory, for warps that share the columns of
// a result: with kShare warps, warp w of them has the column pairs (16 columns) w, w + kShare, ...
#pragma once

#include "cuda/tile/fragment.cuh"

namespace tilewise::cuda {

// acc += left right over kSteps steps of 16 columns of left. left(a, step) and right(b, step, pair)
// load operands; those of one product are on their way while the one before runs. Without
// kLeftAhead the left ones are asked for when they are needed: they take registers until then.
template <DType kType, int kSteps, bool kLeftAhead = true, int kRowAtoms, int kColAtoms, class Left,
          class Right>
__device__ __forceinline__ void product(Accumulator<kRowAtoms, kColAtoms>& acc, const Left& left,
                                        const Right& right) {
  static_assert(kColAtoms % 2 == 0);
  constexpr int kPairs = kColAtoms / 2;
  uint32_t a[2][kRowAtoms][4], b[2][4];
  left(a[0], 0);
  right(b[0], 0, 0);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      const int at = step * kPairs + n, next = at + 1;
      if (next < kSteps * kPairs) right(b[next % 2], next / kPairs, next % kPairs);
      const int left_step = kLeftAhead ? step + 1 : step;
      if (n == 0 && left_step > 0 && left_step < kSteps) left(a[left_step % 2], left_step);
#pragma unroll
      for (int m = 0; m < kRowAtoms; ++m) {
        ptx::mma_m16n8k16<kType>(acc.c[m][2 * n], a[step % 2][m], b[at % 2][0], b[at % 2][1]);
        ptx::mma_m16n8k16<kType>(acc.c[m][2 * n + 1], a[step % 2][m], b[at % 2][2], b[at % 2][3]);
      }
    }
  }
}

// Left operand: rows [row, ...) of the tile.
template <class Tile>
struct LeftRows {
  uint32_t lane;
  __device__ __forceinline__ LeftRows(const Tile& tile, int row) : lane(left_address(tile, row)) {}
  template <int kRowAtoms>
  __device__ __forceinline__ void operator()(uint32_t (&a)[kRowAtoms][4], int step) const {
#pragma unroll
    for (int m = 0; m < kRowAtoms; ++m) {
      ptx::ldmatrix_x4(a[m], Tile::advance(lane, 16 * m, 2 * step));
    }
  }
};

// Left operand: columns [column, ...) of the tile, transposed; column a multiple of the operand's
// rows.
template <class Tile>
struct LeftColumns {
  uint32_t lane;
  __device__ __forceinline__ LeftColumns(const Tile& tile, int column)
      : lane(tile.address(lane_id() % 8 + lane_id() / 16 * 8, column / 8 + lane_id() / 8 % 2)) {}
  template <int kRowAtoms>
  __device__ __forceinline__ void operator()(uint32_t (&a)[kRowAtoms][4], int step) const {
#pragma unroll
    for (int m = 0; m < kRowAtoms; ++m) {
      ptx::ldmatrix_x4_trans(a[m], Tile::advance(lane, 16 * step, 2 * m));
    }
  }
};

// Left operand: an accumulator, rounded to the element type. It never leaves the registers.
template <DType kType, class Acc>
struct LeftRegisters {
  const Acc& acc;
  template <int kRowAtoms>
  __device__ __forceinline__ void operator()(uint32_t (&a)[kRowAtoms][4], int step) const {
#pragma unroll
    for (int m = 0; m < kRowAtoms; ++m) {
      const float(&left)[4] = acc.c[m][2 * step];
      const float(&right)[4] = acc.c[m][2 * step + 1];
      a[m][0] = ptx::pack<kType>(left[0], left[1]);
      a[m][1] = ptx::pack<kType>(left[2], left[3]);
      a[m][2] = ptx::pack<kType>(right[0], right[1]);
      a[m][3] = ptx::pack<kType>(right[2], right[3]);
    }
  }
};

// Right operand: the transpose of rows [row, ...) of the tile.
template <class Tile>
struct RightTransposed {
  uint32_t lane;
  __device__ __forceinline__ RightTransposed(const Tile& tile, int row)
      : lane(tile.address(row + lane_id() % 8 + lane_id() / 16 * 8, lane_id() / 8 % 2)) {}
  __device__ __forceinline__ void operator()(uint32_t (&b)[4], int step, int pair) const {
    ptx::ldmatrix_x4(b, Tile::advance(lane, 16 * pair, 2 * step));
  }
};

// Right operand: rows [row, ...) of the tile, and of its columns the share of warp `share`.
template <int kShare, class Tile>
struct RightRows {
  uint32_t lane;
  __device__ __forceinline__ RightRows(const Tile& tile, int row, int share)
      : lane(tile.address(row + lane_id() % 16, 2 * share + lane_id() / 16)) {}
  __device__ __forceinline__ void operator()(uint32_t (&b)[4], int step, int pair) const {
    ptx::ldmatrix_x4_trans(b, Tile::advance(lane, 16 * step, 2 * kShare * pair));
  }
};

// The 8-column atom of the tile that is atom n of warp `share`.
template <int kShare>
__device__ __forceinline__ int shared_column_atom(int n, int share) {
  return 2 * (n / 2 * kShare + share) + n % 2;
}

// An accumulator into the tile, rounded to the element type: its rows from `row` on; its columns
// those of warp `share`.
template <DType kType, int kShare, int kRowAtoms, int kColAtoms, class Tile>
__device__ __forceinline__ void store_accumulator(Tile& tile, int row, int share,
                                                  const Accumulator<kRowAtoms, kColAtoms>& x) {
  using Acc = Accumulator<kRowAtoms, kColAtoms>;
#pragma unroll
  for (int r = 0; r < Acc::kRows; ++r) {
#pragma unroll
    for (int n = 0; n < kColAtoms; ++n) {
      const int chunk = shared_column_atom<kShare>(n, share);
      *reinterpret_cast<uint32_t*>(tile.data + tile.offset(row + Acc::row(r), chunk) +
                                   2 * (lane_id() % 4)) =
          ptx::pack<kType>(x.at(r, 2 * n), x.at(r, 2 * n + 1));
    }
  }
}

}  // namespace tilewise::cuda
