// The fp32 sums of dQ / scale in the workspace, to which every block of keys adds.
//
// A block of block_m rows is a sequence of accumulator atoms, 16 rows and 8 columns each, rows
// slowest. An atom has 128 values in an order in which a warp adds them with the fewest
// instructions: from sm_90 on four neighbouring values of a lane are one instruction.
#pragma once

#include "cuda/ptx/red.cuh"
#include "cuda/tile/fragment.cuh"

namespace tilewise::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr bool kAtomsByLane = true;
#else
constexpr bool kAtomsByLane = false;  // by value: lanes are neighbours
#endif

// First value of an atom in its block of rows, for tiles of kHeadDim columns.
template <int kHeadDim>
__device__ __forceinline__ int atom_offset(int row_atom, int col_atom) {
  return (row_atom * (kHeadDim / 8) + col_atom) * 128;
}

// Element (row, column) of a block of rows.
template <int kHeadDim>
__device__ __forceinline__ int sum_offset(int row, int column) {
  const int lane = row % 8 * 4 + column % 8 / 2, value = row / 8 % 2 * 2 + column % 2;
  return atom_offset<kHeadDim>(row / 16, column / 8) +
         (kAtomsByLane ? 4 * lane + value : 32 * value + lane);
}

// Adds this lane's four values to an atom.
__device__ __forceinline__ void add_atom(float* atom, const float (&x)[4]) {
  if constexpr (kAtomsByLane) {
    ptx::red_add_v4(atom + 4 * lane_id(), x);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) ptx::red_add(atom + 32 * i + lane_id(), x[i]);
  }
}

__device__ __forceinline__ void load_atom(float (&x)[4], const float* atom) {
  if constexpr (kAtomsByLane) {
    const float4 y = *reinterpret_cast<const float4*>(atom + 4 * lane_id());
    x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = atom[32 * i + lane_id()];
  }
}

}  // namespace tilewise::cuda
