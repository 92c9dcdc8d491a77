// What each file of an instance of the forward holds.
#pragma once

#include "cuda/sm80/forward.cuh"
#include "cuda/sm80/launch.h"

namespace tilewise::cuda::sm80 {

template <DType kType, int kHeadDim, Variant kVariant>
cudaError_t launch_forward(const ForwardParams& params, cudaStream_t stream) {
  constexpr TileConfig kTile = forward_tile_sm80(kHeadDim, kVariant);
  const auto kernel = forward<kType, kHeadDim, kVariant>;
  constexpr int kBytes = static_cast<int>(sizeof(ForwardSmem<kTile>));
  static_assert(kBytes == kTile.forward_smem_bytes());
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  constexpr int kMostZ = 65535;
  ForwardParams part = params;
  void* arguments[] = {&part};
  for (; error == cudaSuccess && part.first_batch < params.batch; part.first_batch += kMostZ) {
    const dim3 grid(static_cast<unsigned>(params.m_blocks * params.num_splits),
                    static_cast<unsigned>(params.num_heads / params.pack),
                    static_cast<unsigned>(min(params.batch - part.first_batch, kMostZ)));
    error = cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, dim3(kTile.threads()),
                             arguments, kBytes, stream);
  }
  if (error != cudaSuccess) (void)cudaGetLastError();  // the caller gets it from us, once
  return error;
}

}  // namespace tilewise::cuda::sm80
