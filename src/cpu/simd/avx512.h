// Vector policy for AVX-512 (F, BW, DQ, VL): sixteen fp32 lanes. Included into the namespace of
// each instruction set that builds on it, so that no copy is shared between their object files.
#pragma once

#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12: _mm512_undefined_ps()
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

#include "core/hd.h"
#include "core/numeric.h"

#ifndef TILEWISE_ISA_NAMESPACE
#error "define TILEWISE_ISA_NAMESPACE (avx512 or avx512bf16) before including this file"
#endif

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

struct Avx512 {
  using Vec = __m512;
  using Mask = __mmask16;
  static constexpr int kLanes = 16;
  // 24 accumulators. Taller tiles (4 vectors x 4 rows) make g++ fold the broadcast into every FMA,
  // which is more loads than the two a clock there are.
  static constexpr int kForwardVecs = 3, kForwardRows = 8;
  static constexpr int kBackwardVecs = 4, kBackwardRows = 6;

  TILEWISE_HD static void prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }
  TILEWISE_HD static Vec zero() { return _mm512_setzero_ps(); }
  TILEWISE_HD static Vec set(float x) { return _mm512_set1_ps(x); }
  TILEWISE_HD static Vec broadcast(const float* p) { return _mm512_set1_ps(*p); }
  TILEWISE_HD static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  TILEWISE_HD static void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  TILEWISE_HD static Vec iota() {
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }

  TILEWISE_HD static Vec load_fp16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  TILEWISE_HD static Vec load_bf16(const uint16_t* p) {
    const __m512i wide =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  TILEWISE_HD static void store_fp16(uint16_t* p, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  TILEWISE_HD static void store_bf16(uint16_t* p, Vec v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i result = _mm512_mask_or_epi32(rounded, is_nan, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(result));
  }

  TILEWISE_HD static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  TILEWISE_HD static Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  TILEWISE_HD static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  TILEWISE_HD static Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  TILEWISE_HD static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }  // a*b + c
  TILEWISE_HD static Vec fms(Vec a, Vec b, Vec c) { return _mm512_fmsub_ps(a, b, c); }  // a*b - c
  // When either is NaN the result is b.
  TILEWISE_HD static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  TILEWISE_HD static Vec abs(Vec a) { return _mm512_abs_ps(a); }
  TILEWISE_HD static Vec copy_sign(Vec magnitude, Vec sign) {
    const __m512 bit = _mm512_castsi512_ps(_mm512_set1_epi32(INT32_MIN));
    return _mm512_or_ps(_mm512_andnot_ps(bit, magnitude), _mm512_and_ps(bit, sign));
  }

  // Comparisons are false on NaN.
  TILEWISE_HD static Mask less_equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
  TILEWISE_HD static Mask less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  TILEWISE_HD static Mask equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  TILEWISE_HD static Mask both(Mask a, Mask b) { return static_cast<Mask>(a & b); }
  TILEWISE_HD static Mask either(Mask a, Mask b) { return static_cast<Mask>(a | b); }
  TILEWISE_HD static bool any(Mask m) { return m != 0; }
  TILEWISE_HD static bool all(Mask m) { return m == 0xffff; }
  TILEWISE_HD static Vec select(Mask m, Vec if_set, Vec if_clear) {
    return _mm512_mask_mov_ps(if_clear, m, if_set);
  }

  // x - round(8x) / 8: one instruction here.
  TILEWISE_HD static Vec exp2_remainder(Vec x, Vec, Vec) { return _mm512_reduce_ps(x, 0x30); }
  // table[t & 7] + (t << 20) on the bit patterns: see kExp2Table, which has its entries twice.
  TILEWISE_HD static Vec exp2_power(Vec t) {
    const __m512i index = _mm512_castps_si512(t);
    const __m512i table = _mm512_load_si512(kExp2Table);
    const __m512i entry = _mm512_permutexvar_epi32(index, table);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(index, 20), entry));
  }
  // For positive normal x = m * 2^e with m in [0.75, 1.5): returns m, sets *exponent to e.
  TILEWISE_HD static Vec split_exponent(Vec x, Vec* exponent) {
    const __m512i offset = _mm512_sub_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x3f400000));
    const __m512i e = _mm512_srai_epi32(offset, 23);
    *exponent = _mm512_cvtepi32_ps(e);
    return _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(e, 23)));
  }

  // rows[i] lane j <-> rows[j] lane i: 2x2 and 4x4 within 128-bit lanes, then across them.
  TILEWISE_HD static void transpose(Vec rows[kLanes]) {
    Vec t[16];
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      rows[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
      rows[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
      rows[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      rows[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0x88);
      t[i + 8] = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0xdd);
      t[i + 12] = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
      rows[i] = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88);
      rows[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
      rows[i + 4] = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
      rows[i + 12] = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
    }
  }

  // Two vectors of neighbouring elements of a row, for arithmetic that does not care which lane
  // holds which element as long as all operands agree. Of bf16, a has the even ones and b the odd
  // ones: a shift and a mask instead of two widenings and two shifts. `count` < 2 * kLanes leaves
  // the other elements zero (load) or as they are (store), and their memory untouched.
  struct Pair {
    Vec a, b;
  };
  TILEWISE_HD static Pair split_bf16(__m512i x) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)))};
  }
  TILEWISE_HD static __mmask32 first(int count) { return (1u << count) - 1; }
  TILEWISE_HD static Pair load_pair_fp32(const float* p) { return {load(p), load(p + kLanes)}; }
  TILEWISE_HD static Pair load_pair_fp16(const uint16_t* p) {
    return {load_fp16(p), load_fp16(p + kLanes)};
  }
  TILEWISE_HD static Pair load_pair_bf16(const uint16_t* p) {
    return split_bf16(_mm512_loadu_si512(p));
  }
  TILEWISE_HD static Pair load_pair_fp32(const float* p, int count) {
    const __mmask32 m = first(count);
    return {_mm512_maskz_loadu_ps(static_cast<__mmask16>(m), p),
            _mm512_maskz_loadu_ps(static_cast<__mmask16>(m >> 16), p + kLanes)};
  }
  TILEWISE_HD static Pair load_pair_fp16(const uint16_t* p, int count) {
    const __m512i x = _mm512_maskz_loadu_epi16(first(count), p);
    return {_mm512_cvtph_ps(_mm512_castsi512_si256(x)),
            _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1))};
  }
  TILEWISE_HD static Pair load_pair_bf16(const uint16_t* p, int count) {
    return split_bf16(_mm512_maskz_loadu_epi16(first(count), p));
  }
  // Elements of a pair in the order of memory, from the order of load_pair_bf16.
  TILEWISE_HD static Pair in_order_bf16(Pair x) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    return {_mm512_permutex2var_ps(x.a, low, x.b), _mm512_permutex2var_ps(x.a, high, x.b)};
  }

  // Lane i <-> lane i ^ kStep.
  template <int kStep>
  TILEWISE_HD static Vec swap(Vec v) {
    if constexpr (kStep == 8) return _mm512_shuffle_f32x4(v, v, 0x4e);
    if constexpr (kStep == 4) return _mm512_shuffle_f32x4(v, v, 0xb1);
    if constexpr (kStep == 2) return _mm512_permute_ps(v, 0x4e);
    return _mm512_permute_ps(v, 0xb1);
  }
  // Stores groups of kCount lanes `step` floats apart.
  template <int kCount>
  TILEWISE_HD static void store_groups(float* p, int64_t step, Vec v) {
    static_assert(kCount == 8 || kCount == 4 || kCount == 2);
    if constexpr (kCount == 8) {
      _mm256_storeu_ps(p, _mm512_castps512_ps256(v));
      _mm256_storeu_ps(p + step, _mm512_extractf32x8_ps(v, 1));
      return;
    }
    const __m128 quarters[] = {_mm512_castps512_ps128(v), _mm512_extractf32x4_ps(v, 1),
                               _mm512_extractf32x4_ps(v, 2), _mm512_extractf32x4_ps(v, 3)};
    for (int i = 0; i < 4; ++i) {
      if constexpr (kCount == 4) _mm_storeu_ps(p + i * step, quarters[i]);
      if constexpr (kCount == 2) {
        _mm_storel_pi(reinterpret_cast<__m64*>(p + 2 * i * step), quarters[i]);
        _mm_storeh_pi(reinterpret_cast<__m64*>(p + (2 * i + 1) * step), quarters[i]);
      }
    }
  }
  // Lane i of the result is the sum of all lanes of x[i]: lane n with n + 8 first, then neighbours.
  // Each step adds what two vectors keep in place to what they swap: blends have more units to run
  // on than shuffles.
  TILEWISE_HD static Vec sum_lanes(const Vec x[kLanes]) {
    Vec t[8], u[4], w[2];
    for (int i = 0; i < 8; ++i) {
      t[i] = add(_mm512_mask_blend_ps(0xff00, x[i], x[i + 8]),
                 _mm512_shuffle_f32x4(x[i], x[i + 8], 0x4e));
    }
    for (int i = 0; i < 4; ++i) {
      const Vec a = t[2 * i], b = t[2 * i + 1];
      u[i] = add(_mm512_mask_blend_ps(0xaaaa, a, b),
                 _mm512_permute_ps(_mm512_mask_blend_ps(0xaaaa, b, a), 0xb1));
    }
    for (int i = 0; i < 2; ++i) {
      const Vec a = u[2 * i], b = u[2 * i + 1];
      w[i] = add(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_shuffle_ps(a, b, 0x4e));
    }
    const Vec swapped = _mm512_mask_blend_ps(0xf0f0, w[1], w[0]);
    return add(_mm512_mask_blend_ps(0xf0f0, w[0], w[1]),
               _mm512_shuffle_f32x4(swapped, swapped, 0xb1));
  }
};

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
