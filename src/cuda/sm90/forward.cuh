// The attention forward of Hopper: copy engine, wgmma, and roles that run beside each other
// (docs/kernels/forward_sm90.md).
//
// Thread blocks stay on their SMs and take tiles, 64 query rows of a head for each warpgroup of
// consumers. One thread loads (Producer), one stores (Storer), and the consumers compute.
#pragma once

#include "cuda/ptx/warpgroup.cuh"
#include "cuda/sm90/forward_consumer.cuh"
#include "cuda/sm90/forward_movers.cuh"
#include "cuda/sm90/forward_redo.cuh"

namespace tilewise::cuda::sm90 {

template <DType kType, int kHeadDim, Variant kVariant, int kRows>
__global__ void __launch_bounds__(forward_tile(kHeadDim, kVariant, kRows).threads(), 1)
    forward(const __grid_constant__ TileForwardParams p) {
  constexpr ForwardTile kTile = forward_tile(kHeadDim, kVariant, kRows);
  extern __shared__ __align__(1024) unsigned char shared_1024[];
  auto& smem = *reinterpret_cast<ForwardSmem<kTile>*>(shared_1024);
  if (threadIdx.x == 0) smem.init();
  __syncthreads();
  if (warpgroup_id() > 0) {
    ptx::take_registers<kTile.consumer_registers()>();
    Consumer<kType, kTile> consumer{p, smem};
    consumer.run();
    Recomputer<kType, kTile>{consumer}.run();
    return;
  }
  ptx::give_registers<kTile.producer_registers()>();
  const int warp = uniform(warp_id());
  if (warp == 0) {
    if (ptx::elect_one()) Producer<kTile>{p, smem}.run();
  } else if (warp == 1) {
    if (ptx::elect_one()) Storer<kTile>{p, smem}.run();
  }
}

}  // namespace tilewise::cuda::sm90
