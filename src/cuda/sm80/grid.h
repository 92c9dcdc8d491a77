// Launches: the grid's z has the sequences, as many as it can.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace tilewise::cuda {

constexpr int kMostY = 65535;  // blocks in a grid's y

// Lets a kernel have that much shared memory, on the current device. Asked of CUDA once for each
// device: the question costs a microsecond, and forgets an error that the caller has not looked at.
template <auto kKernel>
cudaError_t allow_shared_memory(int bytes) {
  static std::atomic<uint64_t> asked{0};  // a bit a device
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if ((asked.load(std::memory_order_relaxed) & bit) != 0) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess) asked.fetch_or(bit, std::memory_order_relaxed);
  return error;
}

// Launches kKernel(params, rest...) over (x, y, sequences), in parts of 65,535 sequences. The error
// is the caller's alone: CUDA does not keep it.
template <auto kKernel, class Params, class... Rest>
cudaError_t launch_over_batch(const Params& params, int64_t x, int64_t y, int threads,
                              int smem_bytes, cudaStream_t stream, Rest... rest) {
  constexpr int kMostZ = 65535;
  cudaError_t error = cudaSuccess;
  if (smem_bytes > 48 << 10) error = allow_shared_memory<kKernel>(smem_bytes);
  Params part = params;
  void* arguments[] = {&part, &rest...};
  for (; error == cudaSuccess && part.first_batch < params.batch; part.first_batch += kMostZ) {
    const dim3 grid(static_cast<unsigned>(x), static_cast<unsigned>(y),
                    static_cast<unsigned>(std::min(params.batch - part.first_batch, kMostZ)));
    error = cudaLaunchKernel(reinterpret_cast<const void*>(kKernel), grid,
                             dim3(static_cast<unsigned>(threads)), arguments,
                             static_cast<size_t>(smem_bytes), stream);
  }
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

}  // namespace tilewise::cuda
