// The compiled instances of the sm_90 kernels: one file each, written by CMake (instances.cmake).
#pragma once

#include <cuda_runtime_api.h>

#include "core/dtype.h"
#include "cuda/params.h"
#include "cuda/tile_config.h"

namespace tilewise::cuda::sm90 {

// `blocks` thread blocks, no more than there are tiles, each of kRows query rows.
template <DType kType, int kHeadDim, Variant kVariant, int kRows>
cudaError_t launch_forward(const TileForwardParams& params, int blocks, cudaStream_t stream);

// dK, dV and the sums of dQ; `blocks` thread blocks, no more than there are tiles.
template <DType kType, int kHeadDim, Variant kVariant>
cudaError_t launch_backward(const TileBackwardParams& params, int blocks, cudaStream_t stream);

}  // namespace tilewise::cuda::sm90
