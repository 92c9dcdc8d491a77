// Vector policy for AVX2 + FMA + F16C: eight fp32 lanes.
#pragma once

#define TILEWISE_ISA_NAMESPACE avx2

#include <immintrin.h>

#include <cstdint>

#include "core/hd.h"
#include "core/numeric.h"

namespace tilewise::cpu::avx2 {

struct Simd {
  using Vec = __m256;
  using Mask = __m256;  // all ones or all zeros per lane
  static constexpr int kLanes = 8;
  // Register tiles (vectors x rows): 3 x 4 and 2 x 6 fill the 16 registers with 12 accumulators,
  // the least that hides an FMA latency of 4 at two a clock.
  static constexpr int kForwardVecs = 3, kForwardRows = 4;
  static constexpr int kBackwardVecs = 2, kBackwardRows = 6;

  // A word is what one broadcast feeds to mac(): here one fp32 value (a pair of bf16 in
  // avx512bf16.h). Packed operands are rows of words.
  using Word = float;
  using Words = Vec;
  static constexpr int kWordElements = 1;

  TILEWISE_HD static void prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }
  TILEWISE_HD static Vec zero() { return _mm256_setzero_ps(); }
  TILEWISE_HD static Vec set(float x) { return _mm256_set1_ps(x); }
  TILEWISE_HD static Vec broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  TILEWISE_HD static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  TILEWISE_HD static void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
  TILEWISE_HD static Words load_words(const Word* p) { return load(p); }
  TILEWISE_HD static Words broadcast_word(const Word* p) { return broadcast(p); }
  TILEWISE_HD static Vec iota() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }

  // Lanes of 16-bit memory, widened or rounded to nearest even.
  TILEWISE_HD static Vec load_fp16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  TILEWISE_HD static Vec load_bf16(const uint16_t* p) {
    const __m256i wide =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  TILEWISE_HD static void store_fp16(uint16_t* p, Vec v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  TILEWISE_HD static void store_bf16(uint16_t* p, Vec v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, quiet, is_nan);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(p),
        _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1)));
  }

  TILEWISE_HD static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  TILEWISE_HD static Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  TILEWISE_HD static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  TILEWISE_HD static Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  TILEWISE_HD static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }  // a*b + c
  TILEWISE_HD static Vec fms(Vec a, Vec b, Vec c) { return _mm256_fmsub_ps(a, b, c); }  // a*b - c
  // When either is NaN the result is b.
  TILEWISE_HD static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  TILEWISE_HD static Vec abs(Vec a) {
    return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
  }
  TILEWISE_HD static Vec copy_sign(Vec magnitude, Vec sign) {
    const __m256 bit = _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MIN));
    return _mm256_or_ps(_mm256_andnot_ps(bit, magnitude), _mm256_and_ps(bit, sign));
  }

  // acc + word * v: the multiply-accumulate of the tiles. g++ 12 picks the 132 and 213 forms for
  // the intrinsic, moves accumulators about and spills most of them; the in-place form keeps the
  // 3 x 4 tile at 81-95 % of peak instead of 67-79 % (docs/tuning/cpu.md).
  TILEWISE_HD static Vec mac(Words word, Words v, Vec acc) {
#if defined(__clang__)
    return _mm256_fmadd_ps(word, v, acc);
#else
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(word), "x"(v));
    return acc;
#endif
  }

  // Comparisons are false on NaN.
  TILEWISE_HD static Mask less_equal(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
  TILEWISE_HD static Mask less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  TILEWISE_HD static Mask equal(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
  TILEWISE_HD static Mask both(Mask a, Mask b) { return _mm256_and_ps(a, b); }
  TILEWISE_HD static Mask either(Mask a, Mask b) { return _mm256_or_ps(a, b); }
  TILEWISE_HD static bool any(Mask m) { return _mm256_movemask_ps(m) != 0; }
  TILEWISE_HD static bool all(Mask m) { return _mm256_movemask_ps(m) == 0xff; }
  TILEWISE_HD static Vec select(Mask m, Vec if_set, Vec if_clear) {
    return _mm256_blendv_ps(if_clear, if_set, m);
  }

  // x - round(8x) / 8, given t = x + round: see exp2_in_place().
  TILEWISE_HD static Vec exp2_remainder(Vec x, Vec t, Vec round) { return sub(x, sub(t, round)); }
  // table[t & 7] + (t << 20) on the bit patterns: see kExp2Table.
  TILEWISE_HD static Vec exp2_power(Vec t) {
    const __m256i index = _mm256_castps_si256(t);
    const __m256 table = _mm256_load_ps(reinterpret_cast<const float*>(kExp2Table));
    const __m256i entry = _mm256_castps_si256(_mm256_permutevar8x32_ps(table, index));
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(index, 20), entry));
  }
  // For positive normal x = m * 2^e with m in [0.75, 1.5): returns m, sets *exponent to e.
  TILEWISE_HD static Vec split_exponent(Vec x, Vec* exponent) {
    const __m256i offset = _mm256_sub_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x3f400000));
    const __m256i e = _mm256_srai_epi32(offset, 23);
    *exponent = _mm256_cvtepi32_ps(e);
    return _mm256_castsi256_ps(_mm256_sub_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(e, 23)));
  }

  // rows[i] lane j <-> rows[j] lane i.
  TILEWISE_HD static void transpose(Vec rows[kLanes]) {
    Vec t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
      u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      rows[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
      rows[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
  }

  // Two vectors of neighbouring elements of a row, for arithmetic that does not care which lane
  // holds which element as long as all operands agree. Of bf16, a has the even ones and b the odd
  // ones: a shift and a mask instead of two widenings and two shifts.
  struct Pair {
    Vec a, b;
  };
  TILEWISE_HD static Pair load_pair_fp32(const float* p) { return {load(p), load(p + kLanes)}; }
  TILEWISE_HD static Pair load_pair_fp16(const uint16_t* p) {
    return {load_fp16(p), load_fp16(p + kLanes)};
  }
  TILEWISE_HD static Pair load_pair_bf16(const uint16_t* p) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-65536)))};
  }
  // The first `count` < 2 * kLanes elements; zeros for the others, whose memory is not touched.
  TILEWISE_HD static Pair load_pair_fp32(const float* p, int count) {
    float x[2 * kLanes] = {};
    for (int i = 0; i < count; ++i) x[i] = p[i];
    return load_pair_fp32(x);
  }
  TILEWISE_HD static Pair load_pair_fp16(const uint16_t* p, int count) {
    uint16_t x[2 * kLanes] = {};
    for (int i = 0; i < count; ++i) x[i] = p[i];
    return load_pair_fp16(x);
  }
  TILEWISE_HD static Pair load_pair_bf16(const uint16_t* p, int count) {
    uint16_t x[2 * kLanes] = {};
    for (int i = 0; i < count; ++i) x[i] = p[i];
    return load_pair_bf16(x);
  }
  // Elements of a pair in the order of memory, from the order of load_pair_bf16.
  TILEWISE_HD static Pair in_order_bf16(Pair x) {
    const Vec low = _mm256_unpacklo_ps(x.a, x.b), high = _mm256_unpackhi_ps(x.a, x.b);
    return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
  }

  // Lane i <-> lane i ^ kStep.
  template <int kStep>
  TILEWISE_HD static Vec swap(Vec v) {
    if constexpr (kStep == 4) return _mm256_permute2f128_ps(v, v, 1);
    if constexpr (kStep == 2) return _mm256_permute_ps(v, 0x4e);
    return _mm256_permute_ps(v, 0xb1);
  }
  // Stores groups of kCount lanes `step` floats apart.
  template <int kCount>
  TILEWISE_HD static void store_groups(float* p, int64_t step, Vec v) {
    static_assert(kCount == 4 || kCount == 2);
    const __m128 halves[] = {_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)};
    for (int i = 0; i < 2; ++i) {
      if constexpr (kCount == 4) _mm_storeu_ps(p + i * step, halves[i]);
      if constexpr (kCount == 2) {
        _mm_storel_pi(reinterpret_cast<__m64*>(p + 2 * i * step), halves[i]);
        _mm_storeh_pi(reinterpret_cast<__m64*>(p + (2 * i + 1) * step), halves[i]);
      }
    }
  }
  // Lane i of the result is the sum of all lanes of x[i]: neighbours first.
  TILEWISE_HD static Vec sum_lanes(const Vec x[kLanes]) {
    const Vec low = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    const Vec high = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return add(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
  }
};

}  // namespace tilewise::cpu::avx2
