// Register-only loops: what the arithmetic units give when nothing is loaded. Every benchmark run
// sits between two of them, because a shared machine changes its speed within seconds.
#pragma once

#include <string>
#include <string_view>

namespace tilewise::harness {

enum class PeakInstruction { kFmaFp32Scalar, kFmaFp32Avx2, kFmaFp32Avx512, kVdpbf16ps };

const char* name_of(PeakInstruction i);  // "fma_fp32" or "vdpbf16ps"
bool can_run(PeakInstruction i);         // on this processor

// The instruction that a kernel of that name spends its time in, for inputs of that type
// ("cpu.forward.avx512bf16", "bf16" -> vdpbf16ps); what this processor is best at if the name does
// not say.
PeakInstruction instruction_of(std::string_view kernel, std::string_view dtype);

// GFLOP/s of about `seconds` of the loop: of the calling thread in its CPU time when threads == 1,
// else of all of them together in wall time.
double peak_gflops(PeakInstruction i, int threads = 1, double seconds = 0.002);

double thread_cpu_seconds();
double wall_seconds();

}  // namespace tilewise::harness
