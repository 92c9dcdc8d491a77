// exp2, log2 and tanh on the lanes of an instruction set's Simd policy, and element access for
// every dtype. Included once per instruction set; the same operations in the same order everywhere,
// so that results agree bit for bit.
#include "core/dtype.h"
#include "core/numeric.h"

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

using Vec = Simd::Vec;
using Mask = Simd::Mask;
using Words = Simd::Words;
using Word = Simd::Word;
constexpr int kLanes = Simd::kLanes;

#define TILEWISE_UNROLL _Pragma("GCC unroll 32")

constexpr float kExp2MostWhole = 262144.0f;  // 2^18: kExp2Round +- it has the same spacing, 1/8

// x[i] = 2^(x[i] - whole[i]) for N independent vectors, interleaved to hide latency. Method:
// core/numeric.h. `whole` holds integers of at most kExp2MostWhole and is given as
// lowest(i) = whole[i] + kExp2Lowest and round(i) = kExp2Round - whole[i]: the sum that finds the
// power takes it off without rounding. Exactly 0 for x - whole <= -127 and -inf; NaN stays NaN;
// x - whole above 127 is not handled.
template <int N, class Lowest, class Round>
TILEWISE_HD void exp2_in_place(Vec* x, const Lowest& lowest, const Round& round) {
  Vec power[N], poly[N];
  TILEWISE_UNROLL for (int i = 0; i < N; ++i) x[i] = Simd::max(lowest(i), x[i]);  // keeps NaN
  TILEWISE_UNROLL for (int i = 0; i < N; ++i) power[i] = Simd::add(x[i], round(i));
  TILEWISE_UNROLL for (int i = 0; i < N; ++i) {
    x[i] = Simd::exp2_remainder(x[i], power[i], round(i));
  }
  TILEWISE_UNROLL for (int i = 0; i < N; ++i) power[i] = Simd::exp2_power(power[i]);
  TILEWISE_UNROLL for (int i = 0; i < N; ++i) {
    poly[i] = Simd::fma(Simd::set(kExp2C3), x[i], Simd::set(kExp2C2));
  }
  TILEWISE_UNROLL for (int i = 0; i < N; ++i) {
    poly[i] = Simd::fma(poly[i], x[i], Simd::set(kExp2C1));
  }
  TILEWISE_UNROLL for (int i = 0; i < N; ++i) x[i] = Simd::mul(x[i], power[i]);
  TILEWISE_UNROLL for (int i = 0; i < N; ++i) x[i] = Simd::fma(x[i], poly[i], power[i]);
}

// x[i] = 2^x[i]: the same with whole = 0.
template <int N>
TILEWISE_HD void exp2_in_place(Vec* x) {
  exp2_in_place<N>(
      x, [](int) __attribute__((always_inline)) { return Simd::set(kExp2Lowest); },
      [](int) __attribute__((always_inline)) { return Simd::set(kExp2Round); });
}

TILEWISE_HD Vec exp2(Vec x) {
  exp2_in_place<1>(&x);
  return x;
}

// log2 of positive normal numbers. x = m * 2^e with m in [0.75, 1.5), z = (m-1)/(m+1), |z| <= 1/5:
// log2(m) = 2/ln(2) * (z + z^3/3 + z^5/5 + ...), cut after z^9 (relative error below 2^-26).
TILEWISE_HD Vec log2(Vec x) {
  Vec exponent;
  const Vec m = Simd::split_exponent(x, &exponent);
  const Vec one = Simd::set(1.0f);
  const Vec z = Simd::div(Simd::sub(m, one), Simd::add(m, one));
  const Vec z2 = Simd::mul(z, z);
  Vec p = Simd::set(1.0f / 9.0f);
  p = Simd::fma(p, z2, Simd::set(1.0f / 7.0f));
  p = Simd::fma(p, z2, Simd::set(1.0f / 5.0f));
  p = Simd::fma(p, z2, Simd::set(1.0f / 3.0f));
  p = Simd::fma(p, z2, one);
  return Simd::fma(Simd::mul(z, p), Simd::set(2.88539008177792681f), exponent);
}

// tanh, within 2 ulp: an odd polynomial below 0.625 (coefficients of Cephes' tanhf), else
// 1 - 2 / (e^(2|x|) + 1). +-1 beyond 9 and for +-inf; NaN stays NaN.
TILEWISE_HD Vec tanh(Vec x) {
  const Vec magnitude = Simd::abs(x);
  const Vec x2 = Simd::mul(x, x);
  Vec p = Simd::set(-5.70498872745e-3f);
  p = Simd::fma(p, x2, Simd::set(2.06390887954e-2f));
  p = Simd::fma(p, x2, Simd::set(-5.37397155531e-2f));
  p = Simd::fma(p, x2, Simd::set(1.33314422036e-1f));
  p = Simd::fma(p, x2, Simd::set(-3.33332819422e-1f));
  const Vec small = Simd::fma(Simd::mul(x, x2), p, x);
  const Vec cut =
      Simd::select(Simd::less(Simd::set(10.0f), magnitude), Simd::set(10.0f), magnitude);
  const Vec power = exp2(Simd::mul(cut, Simd::set(2.88539008177792681f)));
  const Vec one = Simd::set(1.0f);
  const Vec large = Simd::sub(one, Simd::div(Simd::set(2.0f), Simd::add(power, one)));
  return Simd::select(Simd::less(magnitude, Simd::set(0.625f)), small, Simd::copy_sign(large, x));
}

// kLanes elements of any dtype but fp64 as fp32, and back (rounded to nearest even).
TILEWISE_HD Vec load_elements(const void* base, int64_t element, DType dtype) {
  if (dtype == DType::kFp32) return Simd::load(static_cast<const float*>(base) + element);
  const uint16_t* p = static_cast<const uint16_t*>(base) + element;
  return dtype == DType::kFp16 ? Simd::load_fp16(p) : Simd::load_bf16(p);
}
TILEWISE_HD void store_elements(void* base, int64_t element, DType dtype, Vec v) {
  if (dtype == DType::kFp32) {
    Simd::store(static_cast<float*>(base) + element, v);
  } else if (dtype == DType::kFp16) {
    Simd::store_fp16(static_cast<uint16_t*>(base) + element, v);
  } else {
    Simd::store_bf16(static_cast<uint16_t*>(base) + element, v);
  }
}
TILEWISE_HD float load_element(const void* base, int64_t element, DType dtype) {
  if (dtype == DType::kFp32) return static_cast<const float*>(base)[element];
  const uint16_t bits = static_cast<const uint16_t*>(base)[element];
  return dtype == DType::kFp16 ? float_of_fp16(bits) : float_of_bf16(bits);
}
TILEWISE_HD void store_element(void* base, int64_t element, DType dtype, float x) {
  if (dtype == DType::kFp32) {
    static_cast<float*>(base)[element] = x;
  } else {
    static_cast<uint16_t*>(base)[element] =
        dtype == DType::kFp16 ? fp16_of_float(x) : bf16_of_float(x);
  }
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
