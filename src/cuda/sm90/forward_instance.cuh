// What each file of an instance of the sm_90 forward holds.
#pragma once

#include "cuda/sm90/forward.cuh"
#include "cuda/sm90/launch.h"

namespace tilewise::cuda::sm90 {

template <DType kType, int kHeadDim, Variant kVariant, int kRows>
cudaError_t launch_forward(const TileForwardParams& params, int blocks, cudaStream_t stream) {
  constexpr ForwardTile kTile = forward_tile(kHeadDim, kVariant, kRows);
  constexpr int kBytes = static_cast<int>(sizeof(ForwardSmem<kTile>));
  static_assert(kBytes == kTile.smem_bytes());
  const auto kernel = forward<kType, kHeadDim, kVariant, kRows>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error == cudaSuccess) {
    TileForwardParams copy = params;
    void* arguments[] = {&copy};
    error =
        cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)),
                         dim3(kTile.threads()), arguments, kBytes, stream);
  }
  if (error != cudaSuccess) (void)cudaGetLastError();  // the caller gets it from us, once
  return error;
}

}  // namespace tilewise::cuda::sm90
