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
  cudaError_t error = launch_delta<kType>(params, kHeadDim, stream);
  if (error != cudaSuccess) return error;
  error = launch_over_batch<backward<kType, kHeadDim, kVariant>>(
      params, params.n_blocks, params.num_heads / params.group, kTile.threads(), kTile.smem_bytes(),
      stream);
  if (error != cudaSuccess) return error;
  return launch_convert_dq<kType, kHeadDim>(params, stream);
}

}  // namespace tilewise::cuda::sm80
