// What each file of an instance of the backward holds.
#pragma once

#include "cuda/common/convert_dq.cuh"
#include "cuda/sm80/backward.cuh"
#include "cuda/sm80/grid.h"
#include "cuda/sm80/launch.h"

namespace tilewise::cuda::sm80 {

template <DType kType, int kHeadDim, Variant kVariant>
cudaError_t launch_backward(BackwardParams params, cudaStream_t stream) {
  constexpr BackwardTile kTile = backward_tile_sm80(kHeadDim, kVariant);
  params.n_blocks = std::max(1, (params.seqlen_k + kTile.block_n - 1) / kTile.block_n);
  static_assert(kTile.block_m == kBackwardBlockM);  // of the passes over rows
  static_assert(sizeof(BackwardSmem<kTile>) == kTile.smem_bytes());
  const int heads = params.num_heads / params.group;
  // Under a mask the blocks of keys are longer and shorter: those of all heads in turn.
  params.heads_first = kTile.banded() && params.ticket == nullptr && params.n_blocks <= kMostY;
  cudaError_t error = launch_delta<kType>(params, kHeadDim, stream);
  if (error != cudaSuccess) return error;
  error = launch_over_batch<backward<kType, kHeadDim, kVariant>>(
      params, params.heads_first ? heads : params.n_blocks,
      params.heads_first ? params.n_blocks : heads, kTile.threads(), kTile.smem_bytes(), stream);
  if (error != cudaSuccess) return error;
  return launch_convert_dq<kType, kHeadDim>(params, stream);
}

}  // namespace tilewise::cuda::sm80
