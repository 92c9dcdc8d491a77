// Vector policy for AVX-512 without BF16: the products of the tiles are fp32 FMAs.
#pragma once

#define TILEWISE_ISA_NAMESPACE avx512
#include "cpu/simd/avx512.h"

namespace tilewise::cpu::avx512 {

struct Simd : Avx512 {
  using Word = float;
  using Words = Vec;
  static constexpr int kWordElements = 1;

  TILEWISE_HD static Words load_words(const Word* p) { return load(p); }
  TILEWISE_HD static Words broadcast_word(const Word* p) { return broadcast(p); }
  // acc + word * v, in place: see avx2.h.
  TILEWISE_HD static Vec mac(Words word, Words v, Vec acc) {
#if defined(__clang__)
    return fma(word, v, acc);
#else
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(word), "v"(v));
    return acc;
#endif
  }
};

}  // namespace tilewise::cpu::avx512
