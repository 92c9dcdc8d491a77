// Elements of Q, dO and K that are not finite, in the steps at an edge of the sm_90 backward
// (common/nonfinite.cuh says why and how). All consumers are here, and none has a product under
// way.
#pragma once

#include "cuda/common/nonfinite.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/tile/swizzled_tile.cuh"

namespace tilewise::cuda::sm90 {

// Is one among this thread's share of the tile?
template <DType kType, int kThreads, class Tile>
__device__ __forceinline__ bool has_nonfinite(const Tile& tile, int thread) {
  const uint32_t* const pairs = reinterpret_cast<const uint32_t*>(tile.data);
  uint32_t any = 0;
#pragma unroll 8
  for (int i = thread; i < Tile::kBytes / 4; i += kThreads) any |= not_finite<kType>(pairs[i]);
  return any != 0;
}

// They become 0.
template <DType kType, int kThreads, class Tile>
__device__ __forceinline__ void take_out(Tile& tile, int thread) {
  uint32_t* const pairs = reinterpret_cast<uint32_t*>(tile.data);
#pragma unroll 4
  for (int i = thread; i < Tile::kBytes / 4; i += kThreads) {
    pairs[i] = finite_or_zero<kType>(pairs[i]);
  }
}

// K as the copy engine brought it: rows of `dim` elements, of which `rows` are there.
template <int kThreads, int kRows, int kCols>
__device__ __forceinline__ void put_back(SwizzledTile<kRows, kCols>& tile, const TensorRef& x,
                                         const uint16_t* first, int rows, int thread) {
#pragma unroll 1
  for (int i = thread; i < kRows * (kCols / 8); i += kThreads) {
    const int r = i / (kCols / 8), chunk = i % (kCols / 8);
    const bool there = r < rows && 8 * chunk < x.dim;
    *reinterpret_cast<uint4*>(tile.data + tile.offset(r, chunk)) =
        there ? *reinterpret_cast<const uint4*>(first + r * x.seqlen + 8 * chunk)
              : make_uint4(0, 0, 0, 0);
  }
}

}  // namespace tilewise::cuda::sm90
