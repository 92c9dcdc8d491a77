// The sm_90 kernels in the order of the registry.
#pragma once

#include <vector>

#include "core/registry.h"

namespace tilewise::cuda::sm90 {

std::vector<const KernelEntry*> forward_entries();
std::vector<const KernelEntry*> backward_entries();

}  // namespace tilewise::cuda::sm90
