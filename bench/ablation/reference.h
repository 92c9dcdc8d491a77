// Inputs, and attention in plain fp32 loops on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "cuda/params.h"

namespace tilewise::ablation {

// Standard normal values of the element type, the same for the same seed.
cudaError_t fill(uint16_t* data, int64_t count, DType dtype, uint64_t seed);

// In float and contiguous: o and o_magnitude (batch, seqlen, head, dim), lse (batch, head, seqlen).
// o_magnitude is what o would be of |v|: the measure of rounding errors.
struct Reference {
  float* o = nullptr;
  float* o_magnitude = nullptr;
  float* lse = nullptr;
};
cudaError_t compute_reference(const cuda::ForwardParams& params, DType dtype, Reference out);

}  // namespace tilewise::ablation
