// Launches: the grid's z has the sequences, as many as it can.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>

namespace tilewise::cuda {

constexpr int kMostY = 65535;  // blocks in a grid's y

// Launches kernel(params, rest...) over (x, y, sequences), in parts of 65,535 sequences. The error
// is the caller's alone: CUDA does not keep it.
template <class Params, class... Rest>
cudaError_t launch_over_batch(void (*kernel)(Params, Rest...), const Params& params, int64_t x,
                              int64_t y, int threads, int smem_bytes, cudaStream_t stream,
                              Rest... rest) {
  constexpr int kMostZ = 65535;
  cudaError_t error = cudaSuccess;
  if (smem_bytes > 48 << 10) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
  }
  Params part = params;
  void* arguments[] = {&part, &rest...};
  for (; error == cudaSuccess && part.first_batch < params.batch; part.first_batch += kMostZ) {
    const dim3 grid(static_cast<unsigned>(x), static_cast<unsigned>(y),
                    static_cast<unsigned>(std::min(params.batch - part.first_batch, kMostZ)));
    error = cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid,
                             dim3(static_cast<unsigned>(threads)), arguments,
                             static_cast<size_t>(smem_bytes), stream);
  }
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

}  // namespace tilewise::cuda
