// The compiled instances of the sm_80 kernels: one file each, written by CMake (instances.cmake).
#pragma once

#include <cuda_runtime_api.h>

#include "core/dtype.h"
#include "cuda/params.h"
#include "cuda/tile_config.h"

namespace tilewise::cuda::sm80 {

template <DType kType, int kHeadDim, Variant kVariant>
cudaError_t launch_forward(const ForwardParams& params, cudaStream_t stream);

// All of a backward: delta, the blocks of keys, dQ. Sets n_blocks.
template <DType kType, int kHeadDim, Variant kVariant>
cudaError_t launch_backward(BackwardParams params, cudaStream_t stream);
template <DType kType>
cudaError_t launch_delta(const BackwardParams& params, int head_dim, cudaStream_t stream);
template <DType kType, int kHeadDim>
cudaError_t launch_convert_dq(const BackwardParams& params, cudaStream_t stream);

// Joins the splits of a forward (cuda/common/combine.cuh).
template <DType kType>
cudaError_t launch_combine(const ForwardParams& params, cudaStream_t stream);

}  // namespace tilewise::cuda::sm80
