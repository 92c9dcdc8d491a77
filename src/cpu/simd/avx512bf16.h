// Vector policy for AVX-512 + BF16: the products of the tiles run on vdpbf16ps, two bf16
// multiply-adds a lane. Everything else is AVX-512 fp32. vdpbf16ps flushes subnormals and rounds in
// its own way, so results of this policy are a class of their own, not bit-equal to the others.
#pragma once

#define TILEWISE_ISA_NAMESPACE avx512bf16
#include "cpu/simd/avx512.h"

namespace tilewise::cpu::avx512bf16 {

struct Simd : Avx512 {
  // A word is a pair of bf16 neighbours along the summed dimension, the earlier one in the low
  // half.
  using Word = uint32_t;
  using Words = __m512bh;
  static constexpr int kWordElements = 2;

  TILEWISE_HD static Words load_words(const Word* p) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p));
  }
  TILEWISE_HD static void store_words(Word* p, Words w) {
    _mm512_storeu_si512(p, reinterpret_cast<__m512i>(w));
  }
  // kLanes words of bf16 memory as they are.
  TILEWISE_HD static Vec load_bits(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_loadu_si512(p));
  }
  TILEWISE_HD static Words broadcast_word(const Word* p) {
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(*p)));
  }
  TILEWISE_HD static Vec mac(Words word, Words v, Vec acc) {
    return _mm512_dpbf16_ps(acc, word, v);
  }
  // Lane i is the word (even[i], odd[i]): two rows of a matrix, paired along the rows.
  TILEWISE_HD static Words pair(Vec even, Vec odd) {
    const __m512i rows = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
    const __m512i index =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return reinterpret_cast<__m512bh>(_mm512_permutexvar_epi16(index, rows));
  }
  // The first `count` < 2 * kLanes elements; the others are zero and their memory untouched.
  TILEWISE_HD static Words load_words(const uint16_t* p, int count) {
    return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(first(count), p));
  }
  // Two rows of neighbouring elements, paired along the rows: the even elements, then the odd ones,
  // as in load_pair_bf16.
  struct WordPair {
    Words a, b;
  };
  TILEWISE_HD static WordPair pair_rows(Words row0, Words row1) {
    const __m512i x = reinterpret_cast<__m512i>(row0), y = reinterpret_cast<__m512i>(row1);
    constexpr __mmask32 kOdd = 0xaaaaaaaa;
    return {reinterpret_cast<__m512bh>(_mm512_mask_blend_epi16(kOdd, x, _mm512_slli_epi32(y, 16))),
            reinterpret_cast<__m512bh>(_mm512_mask_blend_epi16(kOdd, _mm512_srli_epi32(x, 16), y))};
  }
  // Rounds to bf16: word i of eight is (v[i], v[i + 8]).
  TILEWISE_HD static void store_halves_paired(Word* p, Vec v) {
    const __m256i index = _mm256_setr_epi16(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(p),
        _mm256_permutexvar_epi16(index, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v))));
  }
  // One row rounded to bf16: eight words that pair neighbouring lanes.
  TILEWISE_HD static void store_rounded(uint16_t* p, Vec row) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(row)));
  }
};

}  // namespace tilewise::cpu::avx512bf16
