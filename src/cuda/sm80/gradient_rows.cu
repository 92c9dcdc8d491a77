// The backward's passes over query rows, before and after its main kernel.
#include "cuda/backward_tile.h"
#include "cuda/common/convert_dq.cuh"
#include "cuda/common/delta.cuh"
#include "cuda/sm80/grid.h"
#include "cuda/sm80/launch.h"

namespace tilewise::cuda::sm80 {

template <DType kType>
cudaError_t launch_delta(const BackwardParams& params, int head_dim, cudaStream_t stream) {
  return launch_over_batch<delta<kType, kBackwardBlockM>>(params, params.m_blocks, params.num_heads,
                                                          kDeltaThreads, 0, stream, head_dim);
}

template <DType kType, int kHeadDim>
cudaError_t launch_convert_dq(const BackwardParams& params, cudaStream_t stream) {
  return launch_over_batch<convert_dq<kType, kHeadDim, kBackwardBlockM>>(
      params, params.m_blocks, params.num_heads, 2 * kBackwardBlockM, 0, stream);
}

#define TILEWISE_TYPE(type)                                                               \
  template cudaError_t launch_delta<type>(const BackwardParams&, int, cudaStream_t);      \
  template cudaError_t launch_convert_dq<type, 64>(const BackwardParams&, cudaStream_t);  \
  template cudaError_t launch_convert_dq<type, 96>(const BackwardParams&, cudaStream_t);  \
  template cudaError_t launch_convert_dq<type, 128>(const BackwardParams&, cudaStream_t); \
  template cudaError_t launch_convert_dq<type, 192>(const BackwardParams&, cudaStream_t); \
  template cudaError_t launch_convert_dq<type, 256>(const BackwardParams&, cudaStream_t);
TILEWISE_TYPE(DType::kFp16)
TILEWISE_TYPE(DType::kBf16)
#undef TILEWISE_TYPE

}  // namespace tilewise::cuda::sm80
