#include "bench/ablation/launch.h"

namespace tilewise::ablation {

Kernel kernel_of(DType dtype, int head_dim, bool causal, Changes changes) {
  if (dtype == DType::kBf16) {
    return head_dim == 64 ? kernel_of<DType::kBf16, 64>(causal, changes)
                          : kernel_of<DType::kBf16, 128>(causal, changes);
  }
  return head_dim == 64 ? kernel_of<DType::kFp16, 64>(causal, changes)
                        : kernel_of<DType::kFp16, 128>(causal, changes);
}

cudaError_t launch(const Kernel& kernel, AblationParams params) {
  cuda::ForwardParams& p = params.forward;
  p.m_blocks = (p.seqlen_q + kernel.tile.block_m - 1) / kernel.tile.block_m;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(kernel.parallel_rows ? p.m_blocks : 1),
                  static_cast<unsigned>(p.num_heads), static_cast<unsigned>(p.batch));
  void* arguments[] = {&params};
  return cudaLaunchKernel(kernel.function, grid, dim3(static_cast<unsigned>(kernel.tile.threads())),
                          arguments, static_cast<size_t>(kernel.shared_bytes), nullptr);
}

}  // namespace tilewise::ablation
