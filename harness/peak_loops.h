// The register-only loops, one per instruction. Internal to harness/.
#pragma once

namespace tilewise::harness {

// Runs `rounds` rounds and returns the floating-point operations done.
using PeakLoop = double (*)(long rounds);

double fma_fp32_scalar(long rounds);
#if defined(__x86_64__)
double fma_fp32_avx2(long rounds);
double fma_fp32_avx512(long rounds);
double vdpbf16ps(long rounds);
#endif

}  // namespace tilewise::harness
