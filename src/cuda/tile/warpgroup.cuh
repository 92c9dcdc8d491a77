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

// Where this lane's row begins, for ldmatrix_x4 and stmatrix_x4 of 16 x 16 blocks.
template <int kCols>
__device__ __forceinline__ uint32_t lane_address(const SwizzledTile<64, kCols>& tile) {
  const unsigned lane = threadIdx.x % 32;
  return tile.address(warp_row() + lane % 16, lane / 16);
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

// s = q k^T.
template <DType kType, int kRows, int kCols>
__device__ __forceinline__ void begin_product_transposed(Accumulator<1, kRows / 8>& s,
                                                         const SwizzledTile<64, kCols>& q,
                                                         const SwizzledTile<kRows, kCols>& k) {
  // Told apart from the lanes' values, so that one register of the warp has it: 408 to 379
  // instructions a step at d = 128.
  const uint64_t left = uniform(descriptor(q)), right = descriptor(k);
  pin(s);
  ptx::wgmma_fence();
#pragma unroll
  for (int x = 0; x < kCols / 16; ++x) {
    ptx::Wgmma<kRows>::template shared<kType, ptx::Major::kK>(
        s.c[0], left + column_step<64, kCols>(x), right + column_step<kRows, kCols>(x), x > 0);
  }
}
template <DType kType, int kRows, int kCols>
__device__ __forceinline__ void begin_product_transposed(Accumulator<1, kRows / 8>& s,
                                                         WarpgroupOperand<kCols / 16>& q,
                                                         const SwizzledTile<kRows, kCols>& k) {
  const uint64_t right = descriptor(k);
  pin(s);
  pin(q);
  ptx::wgmma_fence();
#pragma unroll
  for (int x = 0; x < kCols / 16; ++x) {
    ptx::Wgmma<kRows>::template registers<kType, ptx::Major::kK>(
        s.c[0], q.a[x], right + column_step<kRows, kCols>(x), x > 0);
  }
}

// o += p v, or o = p v when `old` is 0.
template <DType kType, int kRows, int kCols>
__device__ __forceinline__ void begin_product(Accumulator<1, kCols / 8>& o,
                                              WarpgroupOperand<kRows / 16>& p,
                                              const SwizzledTile<kRows, kCols>& v, int old) {
  const uint64_t right = descriptor(v);
  pin(o);
  pin(p);
  ptx::wgmma_fence();
#pragma unroll
  for (int x = 0; x < kRows / 16; ++x) {
    ptx::Wgmma<kCols>::template registers<kType, ptx::Major::kN>(
        o.c[0], p.a[x], right + row_step(x), x > 0 ? 1 : old);
  }
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
