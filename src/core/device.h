// Device: what a kernel's supports() may look at. Plain data, so that tests can fake any machine.
#pragma once

#include <cstdint>

#include "core/hd.h"

namespace tilewise {

enum class DeviceKind : int32_t { kCpu = 0, kCuda = 1 };

// Levels are cumulative: a kernel for one level runs on every higher one.
enum class CpuIsa : int32_t { kScalar = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };

TILEWISE_HD constexpr const char* name_of(CpuIsa isa) {
  return isa == CpuIsa::kScalar   ? "scalar"
         : isa == CpuIsa::kAvx2   ? "avx2"
         : isa == CpuIsa::kAvx512 ? "avx512"
                                  : "avx512bf16";
}

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int32_t index = 0;
  // CPU
  CpuIsa isa = CpuIsa::kScalar;  // the level in use: what the machine has, or TILEWISE_CPU_ISA
  int32_t num_cores = 1;         // logical processors this process may use
  // CUDA
  int32_t sm = 0;            // compute capability, 10 * major + minor
  int32_t num_sms = 0;       // multiprocessors
  int32_t shared_bytes = 0;  // most shared memory of a thread block, opted in

  bool operator==(const Device&) const = default;
};

}  // namespace tilewise
