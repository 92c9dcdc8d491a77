// What the kernel of forward.cuh receives.
#pragma once

#include "cuda/params.h"

namespace tilewise::ablation {

// `forward` without varlen, softcap, ALiBi, groups or splits: q, k, v and o have the same heads,
// rows at multiples of 16 bytes and the head dim of the kernel. With Normalise::kEveryBlock
// forward.lse receives row sums, relative to row_max.
struct AblationParams {
  cuda::ForwardParams forward;
  float* row_max = nullptr;  // as forward.lse; natural logarithms
};

}  // namespace tilewise::ablation
