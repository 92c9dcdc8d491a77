// What each file of an instance of the forward holds.
#pragma once

#include "cuda/sm80/forward.cuh"
#include "cuda/sm80/grid.h"
#include "cuda/sm80/launch.h"

namespace tilewise::cuda::sm80 {

template <DType kType, int kHeadDim, Variant kVariant>
cudaError_t launch_forward(const ForwardParams& params, cudaStream_t stream) {
  constexpr TileConfig kTile = forward_tile_sm80(kHeadDim, kVariant);
  constexpr int kBytes = static_cast<int>(sizeof(ForwardSmem<kTile>));
  static_assert(kBytes == kTile.forward_smem_bytes());
  const int64_t blocks = int64_t{params.m_blocks} * params.num_splits;
  const int64_t heads = params.num_heads / params.pack;
  ForwardParams ordered = params;
  ordered.heads_first = kTile.banded() && blocks <= kMostY;
  const int steps = (params.seqlen_k + kTile.block_n - 1) / kTile.block_n;
  ordered.split_blocks = (steps + params.num_splits - 1) / params.num_splits;
  return launch_over_batch<forward<kType, kHeadDim, kVariant>>(
      ordered, ordered.heads_first ? heads : blocks, ordered.heads_first ? blocks : heads,
      kTile.threads(), kBytes, stream);
}

}  // namespace tilewise::cuda::sm80
