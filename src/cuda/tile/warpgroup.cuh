// Products of a warpgroup (wgmma). They are only begun here: the caller commits and waits.
#pragma once

#include <cstdint>

#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/wgmma_sm90.cuh"
#include "cuda/tile/fragment.cuh"
#include "cuda/tile/swizzled_tile.cuh"

namespace tilewise::cuda {

__device__ __forceinline__ int warpgroup_id() {
  return uniform(static_cast<int>(threadIdx.x / 128));
}
// First row of this warp among the warpgroup's 64.
__device__ __forceinline__ int warp_row() {
  return uniform(static_cast<int>(threadIdx.x / 32 % 4 * 16));
}

// (64, 8 kColAtoms) fp32: warp w of the warpgroup has rows 16 w to 16 w + 15.
template <int kColAtoms>
using WarpgroupAccumulator = Accumulator<1, kColAtoms>;

// A left operand in registers, (64, 16 kSteps) of 16-bit elements.
template <int kSteps>
struct WarpgroupOperand {
  uint32_t a[kSteps][4];
};

// An operand in shared memory: `tile` from some row or part on. Its columns are the summed
// dimension k, 16 a step, and its rows those of a left or the columns of a right operand...
template <int kRows, int kCols>
struct SummedColumns {
  static constexpr ptx::Major kMajor = ptx::Major::kK;
  static constexpr int kSteps = kCols / 16;

  const SwizzledTile<kRows, kCols>& tile;
  int row = 0;  // a multiple of 8

  __device__ __forceinline__ uint64_t first() const { return descriptor(tile) + row * 128 / 16; }
  static __device__ __forceinline__ uint64_t step(int x) { return column_step<kRows, kCols>(x); }
};
// ...or its rows are k.
template <int kRows, int kCols>
struct SummedRows {
  static constexpr ptx::Major kMajor = ptx::Major::kOther;
  static constexpr int kSteps = kRows / 16;

  const SwizzledTile<kRows, kCols>& tile;
  int part = 0;

  __device__ __forceinline__ uint64_t first() const {
    return descriptor(tile) + part * (SwizzledTile<kRows, kCols>::kPartBytes / 16);
  }
  static __device__ __forceinline__ uint64_t step(int x) { return row_step(x); }
};

template <int kRows, int kCols>
__device__ __forceinline__ SummedColumns<kRows, kCols> summed_columns(
    const SwizzledTile<kRows, kCols>& tile, int row = 0) {
  return {tile, row};
}
template <int kRows, int kCols>
__device__ __forceinline__ SummedRows<kRows, kCols> summed_rows(
    const SwizzledTile<kRows, kCols>& tile, int part = 0) {
  return {tile, part};
}

// The compiler may move nothing that touches x across this.
template <int kColAtoms>
__device__ __forceinline__ void pin(Accumulator<1, kColAtoms>& x) {
#pragma unroll
  for (int n = 0; n < kColAtoms; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(x.c[0][n][i])::"memory");
  }
}
template <int kSteps>
__device__ __forceinline__ void pin(WarpgroupOperand<kSteps>& x) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(x.a[k][i])::"memory");
  }
}

// What x >= 0 is computed from is computed before what follows this: ptxas, which pin() does not
// reach, would move it behind the next wait.
__device__ __forceinline__ void compute_now(float x) {
  asm volatile(
      "{\n"
      ".reg .pred never;\n"
      "setp.lt.f32 never, %0, 0f00000000;\n"
      "@never st.shared.u32 [%1], 0;\n"
      "}\n" ::"f"(x),
      "r"(0)
      : "memory");
}

// The same for words none of which has its highest bit set: weights, as fp32 or as pairs.
__device__ __forceinline__ void compute_now(uint32_t words) {
  asm volatile(
      "{\n"
      ".reg .pred never;\n"
      "setp.lt.s32 never, %0, 0;\n"
      "@never st.shared.u32 [%1], 0;\n"
      "}\n" ::"r"(words),
      "r"(0)
      : "memory");
}
template <int kSteps>
__device__ __forceinline__ void compute_now(const WarpgroupOperand<kSteps>& x) {
  uint32_t any = 0;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) any |= x.a[k][i];
  }
  compute_now(any);
}
template <int kColAtoms>
__device__ __forceinline__ void compute_now(const Accumulator<1, kColAtoms>& x) {
  uint32_t any = 0;
#pragma unroll
  for (int n = 0; n < kColAtoms; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) any |= __float_as_uint(x.c[0][n][i]);
  }
  compute_now(any);
}

// An accumulator rounded to the element type is a left operand as it stands.
template <DType kType, int kColAtoms>
__device__ __forceinline__ void pack(WarpgroupOperand<kColAtoms / 2>& a,
                                     const Accumulator<1, kColAtoms>& x) {
#pragma unroll
  for (int k = 0; k < kColAtoms / 2; ++k) {
    const float(&left)[4] = x.c[0][2 * k];
    const float(&right)[4] = x.c[0][2 * k + 1];
    a.a[k][0] = ptx::pack<kType>(left[0], left[1]);
    a.a[k][1] = ptx::pack<kType>(left[2], left[3]);
    a.a[k][2] = ptx::pack<kType>(right[0], right[1]);
    a.a[k][3] = ptx::pack<kType>(right[2], right[3]);
  }
}

// Where this lane's row begins, for ldmatrix_x4 and stmatrix_x4 of 16 x 16 blocks of the
// warpgroup's 64 rows from `row` on.
template <int kRows, int kCols>
__device__ __forceinline__ uint32_t lane_address(const SwizzledTile<kRows, kCols>& tile,
                                                 int row = 0) {
  const unsigned lane = threadIdx.x % 32;
  return tile.address(row + warp_row() + lane % 16, lane / 16);
}

// The tile's rows as a left operand.
template <int kSteps, int kCols>
__device__ __forceinline__ void load_operand(WarpgroupOperand<kSteps>& a,
                                             const SwizzledTile<64, kCols>& tile) {
  const uint32_t lane = lane_address(tile);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    ptx::ldmatrix_x4(a.a[k], SwizzledTile<64, kCols>::advance(lane, 2 * k));
  }
}

// Begins d += left right, or d = left right when `old` is 0. left: (64, k), in registers...
template <DType kType, int kColAtoms, int kSteps, class Right>
__device__ __forceinline__ void begin_product(Accumulator<1, kColAtoms>& d,
                                              WarpgroupOperand<kSteps>& left, const Right& right,
                                              int old) {
  static_assert(kSteps == Right::kSteps);
  const uint64_t b = right.first();
  pin(d);
  pin(left);
  ptx::wgmma_fence();
#pragma unroll
  for (int x = 0; x < kSteps; ++x) {
    ptx::Wgmma<8 * kColAtoms>::template registers<kType, Right::kMajor>(
        d.c[0], left.a[x], b + Right::step(x), x > 0 ? 1 : old);
  }
}
// ...or in shared memory, as right, (k, 8 kColAtoms), always is.
template <DType kType, int kColAtoms, class Left, class Right>
__device__ __forceinline__ void begin_product(Accumulator<1, kColAtoms>& d, const Left& left,
                                              const Right& right, int old) {
  static_assert(Left::kSteps == Right::kSteps);
  // Told apart from the lanes' values, so that one register of the warp has it: 408 to 379
  // instructions a step of the forward at d = 128.
  const uint64_t a = uniform(left.first()), b = right.first();
  pin(d);
  ptx::wgmma_fence();
#pragma unroll
  for (int x = 0; x < Right::kSteps; ++x) {
    ptx::Wgmma<8 * kColAtoms>::template shared<kType, Left::kMajor, Right::kMajor>(
        d.c[0], a + Left::step(x), b + Right::step(x), x > 0 ? 1 : old);
  }
}

// This warp's rows of a left operand into a tile; lane: lane_address() there.
template <class Tile, int kSteps>
__device__ __forceinline__ void store_operand(uint32_t lane, const WarpgroupOperand<kSteps>& a) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) ptx::stmatrix_x4(Tile::advance(lane, 2 * k), a.a[k]);
}

// This warp's rows of an accumulator, times a factor each, into the tile.
template <DType kType, int kColAtoms, int kCols, class Factors>
__device__ __forceinline__ void store_scaled(SwizzledTile<64, kCols>& tile,
                                             const Accumulator<1, kColAtoms>& x,
                                             const Factors& factor) {
  const float f0 = factor.x[0], f1 = factor.x[1];
  const uint32_t lane = lane_address(tile);
#pragma unroll
  for (int k = 0; k < kColAtoms / 2; ++k) {
    const float(&left)[4] = x.c[0][2 * k];
    const float(&right)[4] = x.c[0][2 * k + 1];
    const uint32_t pairs[4] = {ptx::pack<kType>(left[0] * f0, left[1] * f0),
                               ptx::pack<kType>(left[2] * f1, left[3] * f1),
                               ptx::pack<kType>(right[0] * f0, right[1] * f0),
                               ptx::pack<kType>(right[2] * f1, right[3] * f1)};
    ptx::stmatrix_x4(SwizzledTile<64, kCols>::advance(lane, 2 * k), pairs);
  }
}

}  // namespace tilewise::cuda
