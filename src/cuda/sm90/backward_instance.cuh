// What each file of an instance of the sm_90 backward holds.
#pragma once

#include "cuda/sm80/grid.h"
#include "cuda/sm90/backward.cuh"
#include "cuda/sm90/launch.h"

namespace tilewise::cuda::sm90 {

template <DType kType, int kHeadDim, Variant kVariant>
cudaError_t launch_backward(const TileBackwardParams& params, int blocks, cudaStream_t stream) {
  constexpr BackwardTile kTile = backward_tile(kHeadDim, kVariant);
  constexpr int kBytes = static_cast<int>(sizeof(BackwardSmem<kTile>));
  static_assert(kBytes == kTile.smem_bytes());
  constexpr auto kKernel = backward<kType, kHeadDim, kVariant>;
  cudaError_t error = allow_shared_memory<kKernel>(kBytes);
  if (error == cudaSuccess) {
    TileBackwardParams copy = params;
    void* arguments[] = {&copy};
    error = cudaLaunchKernel(reinterpret_cast<const void*>(kKernel),
                             dim3(static_cast<unsigned>(blocks)), dim3(kTile.threads()), arguments,
                             kBytes, stream);
  }
  if (error != cudaSuccess) (void)cudaGetLastError();  // the caller gets it from us, once
  return error;
}

}  // namespace tilewise::cuda::sm90
