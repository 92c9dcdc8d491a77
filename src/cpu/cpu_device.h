// The CPU as a Device.
#pragma once

#include <string>

#include "core/device.h"
#include "core/status.h"

namespace tilewise::cpu {

// The best level this processor and operating system run.
CpuIsa best_isa();

// The CPU with the level of TILEWISE_CPU_ISA (scalar, avx2, avx512 or avx512bf16), or the best one
// when the variable is not set. A level that is unknown or not there is an error.
Result<Device> cpu_device();

// One sentence for `info`: why no higher level than best_isa() runs here.
std::string why_not_higher_isa();

}  // namespace tilewise::cpu
