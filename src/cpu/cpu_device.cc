#include "cpu/cpu_device.h"

#include <sched.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <string_view>
#include <thread>

namespace tilewise::cpu {
namespace {

constexpr CpuIsa kLevels[] = {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16};

#if defined(__x86_64__)
// clang 14's __builtin_cpu_supports does not know f16c. Its registers are those of avx2, which is
// asked for beside it, so the operating system needs no question of its own.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

// Empty when the level runs here. __builtin_cpu_supports also asks the operating system (XGETBV).
std::string missing_for([[maybe_unused]] CpuIsa isa) {
  std::string missing;
#if defined(__x86_64__)
  const auto need = [&missing](bool has, const char* name) {
    if (!has) missing += missing.empty() ? name : std::string(", ") + name;
  };
  __builtin_cpu_init();
  if (isa == CpuIsa::kAvx2) {
    need(__builtin_cpu_supports("avx2"), "avx2");
    need(__builtin_cpu_supports("fma"), "fma");
    need(has_f16c(), "f16c");
  } else if (isa >= CpuIsa::kAvx512) {
    need(__builtin_cpu_supports("avx512f"), "avx512f");
    need(__builtin_cpu_supports("avx512bw"), "avx512bw");
    need(__builtin_cpu_supports("avx512dq"), "avx512dq");
    need(__builtin_cpu_supports("avx512vl"), "avx512vl");
    if (isa == CpuIsa::kAvx512Bf16) need(__builtin_cpu_supports("avx512bf16"), "avx512_bf16");
  }
#else
  if (isa != CpuIsa::kScalar) missing = "an x86-64 processor";
#endif
  return missing;
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
  const unsigned cores = std::thread::hardware_concurrency();
  return cores == 0 ? 1 : static_cast<int>(cores);
}

}  // namespace

CpuIsa best_isa() {
  static const CpuIsa best = [] {
    CpuIsa found = CpuIsa::kScalar;
    for (const CpuIsa isa : kLevels) {
      if (!missing_for(isa).empty()) break;
      found = isa;
    }
    return found;
  }();
  return best;
}

Result<Device> cpu_device() {
  static const int cores = usable_cores();
  Device device;
  device.isa = best_isa();
  device.num_cores = cores;
  const char* wanted = std::getenv("TILEWISE_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return device;
  for (const CpuIsa isa : kLevels) {
    if (std::string_view(wanted) != name_of(isa)) continue;
    if (isa > device.isa) {
      return unsupported("TILEWISE_CPU_ISA={}: this processor has no {}", wanted, missing_for(isa));
    }
    device.isa = isa;
    return device;
  }
  return invalid_argument("TILEWISE_CPU_ISA={}: expected scalar, avx2, avx512 or avx512bf16",
                          wanted);
}

std::string why_not_higher_isa() {
  const CpuIsa best = best_isa();
  if (best == CpuIsa::kAvx512Bf16) return {};
  const CpuIsa next = static_cast<CpuIsa>(static_cast<int>(best) + 1);
  return format("no {} kernels: this processor has no {}", name_of(next), missing_for(next));
}

}  // namespace tilewise::cpu
