#include "harness/peak_loops.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tilewise::harness {
namespace {

// Chains of dependent instructions: more than latency times units (4 x 2 for FMA, 6 x 2 for
// vdpbf16ps), and as many as the registers hold.
constexpr int kChains = 12, kChains512 = 24;

double flops(long rounds, int chains, int lanes, int flops_per_lane) {
  return static_cast<double>(rounds) * chains * lanes * flops_per_lane;
}

}  // namespace

// What a compiler makes of a * b + c without vector flags: four lanes, multiply and add apart.
double fma_fp32_scalar(long rounds) {
  using Lanes __attribute__((vector_size(16))) = float;
  Lanes c[kChains];
  for (Lanes& x : c) x = Lanes{1, 1, 1, 1};
  const Lanes a = {1e-30f, 1e-30f, 1e-30f, 1e-30f}, b = {0.999f, 0.999f, 0.999f, 0.999f};
  for (long i = 0; i < rounds; ++i) {
    _Pragma("GCC unroll 12") for (Lanes& x : c) x = x * b + a;
  }
  Lanes sum = c[0];
  for (const Lanes& x : c) sum += x;
  const volatile float sink = sum[0];
  static_cast<void>(sink);
  return flops(rounds, kChains, 4, 2);
}

#if defined(__x86_64__)

// The instructions themselves, so that no compiler can add a load or take one out.
__attribute__((target("avx2,fma"))) double fma_fp32_avx2(long rounds) {
  __m256 c[kChains];
  const __m256 a = _mm256_set1_ps(1e-30f), b = _mm256_set1_ps(0.999f);
  _Pragma("GCC unroll 12") for (__m256& x : c) x = b;
  for (long i = 0; i < rounds; ++i) {
    _Pragma("GCC unroll 12") for (__m256& x : c) {
      asm volatile("vfmadd213ps %2, %1, %0" : "+x"(x) : "x"(b), "x"(a));
    }
  }
  return flops(rounds, kChains, 8, 2);
}

__attribute__((target("avx512f"))) double fma_fp32_avx512(long rounds) {
  __m512 c[kChains512];
  const __m512 a = _mm512_set1_ps(1e-30f), b = _mm512_set1_ps(0.999f);
  _Pragma("GCC unroll 24") for (__m512& x : c) x = b;
  for (long i = 0; i < rounds; ++i) {
    _Pragma("GCC unroll 24") for (__m512& x : c) {
      asm volatile("vfmadd213ps %2, %1, %0" : "+v"(x) : "v"(b), "v"(a));
    }
  }
  return flops(rounds, kChains512, 16, 2);
}

__attribute__((target("avx512f"))) double vdpbf16ps(long rounds) {
  __m512 c[kChains512];
  const __m512 a = _mm512_setzero_ps(), b = _mm512_set1_ps(1e-3f);
  _Pragma("GCC unroll 24") for (__m512& x : c) x = b;
  for (long i = 0; i < rounds; ++i) {
    _Pragma("GCC unroll 24") for (__m512& x : c) {
      asm volatile("vdpbf16ps %2, %1, %0" : "+v"(x) : "v"(b), "v"(a));
    }
  }
  return flops(rounds, kChains512, 16, 4);
}

#endif

}  // namespace tilewise::harness
