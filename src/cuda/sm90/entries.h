// The sm_90 kernels in the order of the registry.
#pragma once

#include <vector>

#include "core/registry.h"

namespace tilewise::cuda::sm90 {

std::vector<const KernelEntry*> forward_entries();
std::vector<const KernelEntry*> backward_entries();
// The general variant for few queries: heads of a group share a tile, keys are split. Not measured
// yet: behind sm_80's kernels, so that TILEWISE_KERNEL alone chooses it.
std::vector<const KernelEntry*> few_query_entries();

}  // namespace tilewise::cuda::sm90
