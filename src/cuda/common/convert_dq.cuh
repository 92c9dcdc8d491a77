// dQ = scale * (its fp32 sums), rounded to the element type.
#pragma once

#include "cuda/common/dq_sum.cuh"
#include "cuda/common/sequence_place.cuh"
#include "cuda/tile/copy.cuh"

namespace tilewise::cuda {

// One thread block a block of kBlockM rows of (blockIdx.x, head, sequence), one warp 16 rows.
template <DType kType, int kHeadDim, int kBlockM>
__global__ void __launch_bounds__(2 * kBlockM)
    convert_dq(const __grid_constant__ BackwardParams p) {
  __shared__ SmemTile<kBlockM, kHeadDim> tile;
  const int head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.x) * kBlockM;
  const SequencePlace at =
      SequencePlace::of(p, p.first_batch + static_cast<int>(blockIdx.z), kBlockM);
  if (first >= at.n_q) return;
  const float* const sums = p.dq_sum + at.padded_row(head, first) * kHeadDim;
  const int row = 16 * warp_id();
#pragma unroll 8
  for (int n = 0; n < kHeadDim / 8; ++n) {
    float x[4];
    load_atom(x, sums + atom_offset<kHeadDim>(warp_id(), n));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<uint32_t*>(tile.data + tile.offset(row + 8 * half + lane_id() / 4, n) +
                                   2 * (lane_id() % 4)) =
          ptx::pack<kType>(p.scale * x[2 * half], p.scale * x[2 * half + 1]);
    }
  }
  __syncwarp();
  uint16_t* const to = at.query_row(p.dq, first, head);
  store_rows(
      tile, [&](int r) { return to + r * p.dq.seqlen; }, row, min(row + 16, at.n_q - first),
      p.dq.dim, p.dq.vectors);
}

}  // namespace tilewise::cuda
