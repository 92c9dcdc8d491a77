// The CUDA kernels in the order of the registry.
#pragma once

#include <vector>

#include "core/registry.h"

namespace tilewise::cuda {

std::vector<const KernelEntry*> entries();

}  // namespace tilewise::cuda
