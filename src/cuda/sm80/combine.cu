#include "cuda/common/combine.cuh"

#include "cuda/sm80/launch.h"

namespace tilewise::cuda::sm80 {

template <DType kType>
cudaError_t launch_combine(const ForwardParams& params, cudaStream_t stream) {
  const int64_t blocks = (params.partial_rows + 3) / 4;
  ForwardParams copy = params;
  void* arguments[] = {&copy};
  const cudaError_t error =
      cudaLaunchKernel(reinterpret_cast<const void*>(combine<kType>),
                       dim3(static_cast<unsigned>(blocks)), dim3(128), arguments, 0, stream);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}
template cudaError_t launch_combine<DType::kFp16>(const ForwardParams&, cudaStream_t);
template cudaError_t launch_combine<DType::kBf16>(const ForwardParams&, cudaStream_t);

}  // namespace tilewise::cuda::sm80
