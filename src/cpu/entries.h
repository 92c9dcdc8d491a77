// The CPU's kernels in the order of the registry: best first, cpu.reference last.
#pragma once

#include <vector>

#include "core/registry.h"

namespace tilewise::cpu {

std::vector<const KernelEntry*> entries();

// What entries() is put together from: each kernel's own list, best instruction set first.
std::vector<const KernelEntry*> decode_entries();    // decode.cc
std::vector<const KernelEntry*> forward_entries();   // forward.cc
std::vector<const KernelEntry*> backward_entries();  // backward.cc
const KernelEntry* reference_entry();                // reference.cc

}  // namespace tilewise::cpu
