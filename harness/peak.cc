#include "harness/peak.h"

#include <sched.h>
#include <time.h>

#include <thread>
#include <vector>

#include "harness/peak_loops.h"

namespace tilewise::harness {
namespace {

double seconds_of(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

PeakLoop loop_of(PeakInstruction i) {
  switch (i) {
#if defined(__x86_64__)
    case PeakInstruction::kFmaFp32Avx2:
      return fma_fp32_avx2;
    case PeakInstruction::kFmaFp32Avx512:
      return fma_fp32_avx512;
    case PeakInstruction::kVdpbf16ps:
      return vdpbf16ps;
#endif
    default:
      return fma_fp32_scalar;
  }
}

// Flops of about `seconds` of the loop, in whole calls.
double run_for(PeakInstruction i, double seconds, clockid_t clock, double* flops) {
  const PeakLoop loop = loop_of(i);
  const double start = seconds_of(clock);
  double elapsed = 0;
  do {
    *flops += loop(20000);
    elapsed = seconds_of(clock) - start;
  } while (elapsed < seconds);
  return elapsed;
}

}  // namespace

double thread_cpu_seconds() { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }
double wall_seconds() { return seconds_of(CLOCK_MONOTONIC); }

const char* name_of(PeakInstruction i) {
  return i == PeakInstruction::kVdpbf16ps ? "vdpbf16ps" : "fma_fp32";
}

bool can_run(PeakInstruction i) {
#if defined(__x86_64__)
  switch (i) {
    case PeakInstruction::kFmaFp32Scalar:
      return true;
    case PeakInstruction::kFmaFp32Avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case PeakInstruction::kFmaFp32Avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
    case PeakInstruction::kVdpbf16ps:
      return can_run(PeakInstruction::kFmaFp32Avx512) && __builtin_cpu_supports("avx512bf16");
  }
#endif
  return i == PeakInstruction::kFmaFp32Scalar;
}

PeakInstruction instruction_of(std::string_view kernel, std::string_view dtype) {
  const auto has = [&](std::string_view isa) { return kernel.find(isa) != std::string_view::npos; };
  if (has(".scalar")) return PeakInstruction::kFmaFp32Scalar;
  if (has(".avx2")) return PeakInstruction::kFmaFp32Avx2;
  if (has(".avx512bf16") && dtype == "bf16") return PeakInstruction::kVdpbf16ps;
  if (has(".avx512")) return PeakInstruction::kFmaFp32Avx512;
  for (const auto best : {PeakInstruction::kFmaFp32Avx512, PeakInstruction::kFmaFp32Avx2}) {
    if (can_run(best)) return best;
  }
  return PeakInstruction::kFmaFp32Scalar;
}

double peak_gflops(PeakInstruction i, int threads, double seconds) {
  if (threads <= 1) {
    double flops = 0;
    const double elapsed = run_for(i, seconds, CLOCK_THREAD_CPUTIME_ID, &flops);
    return flops / elapsed * 1e-9;
  }
  std::vector<double> rates(static_cast<std::size_t>(threads));
  std::vector<std::thread> pool;
  for (double& rate : rates) {
    pool.emplace_back([i, seconds, &rate] {
      double flops = 0;
      const double elapsed = run_for(i, seconds, CLOCK_MONOTONIC, &flops);
      rate = flops / elapsed * 1e-9;
    });
  }
  for (std::thread& t : pool) t.join();
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

}  // namespace tilewise::harness
