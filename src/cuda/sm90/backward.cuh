// The attention backward of Hopper: copy engine, wgmma, and roles that run beside each other
// (docs/kernels/backward_sm90.md).
//
// Thread blocks stay on their SMs and take tiles, 128 keys of a kv head: they walk over the query
// rows that see these keys, of all query heads of the group. One thread loads (BackwardProducer),
// two warps send gradients out (GradientSender), and two warpgroups compute (BackwardConsumer).
#pragma once

#include "cuda/ptx/warpgroup.cuh"
#include "cuda/sm90/backward_consumer.cuh"
#include "cuda/sm90/backward_movers.cuh"

namespace tilewise::cuda::sm90 {

template <DType kType, int kHeadDim, Variant kVariant>
__global__ void __launch_bounds__(BackwardTile::threads(), 1)
    backward(const __grid_constant__ TileBackwardParams p) {
  constexpr BackwardTile kTile = backward_tile(kHeadDim, kVariant);
  extern __shared__ __align__(1024) unsigned char shared_1024[];
  auto& smem = *reinterpret_cast<BackwardSmem<kTile>*>(shared_1024);
  if (threadIdx.x == 0) smem.init();
  __syncthreads();
  if (warpgroup_id() > 0) {
    ptx::take_registers<kTile.consumer_registers()>();
    BackwardConsumer<kType, kTile>{p, smem}.run();
    return;
  }
  ptx::give_registers<kTile.mover_registers()>();
  const int warp = uniform(warp_id());
  if (warp == 0) {
    if (ptx::elect_one()) BackwardProducer<kTile>{p, smem}.run();
  } else if (warp <= kTile.warpgroups) {
    GradientSender<kTile>{p, smem, warp - 1}.run();
  }
}

}  // namespace tilewise::cuda::sm90
