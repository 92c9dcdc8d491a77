#include "cpu/simd/avx512bf16.h"
#include "cpu/vector_math.inl"

#include "verbs.inl"

namespace tilewise::cpu::simd_test {

const Table& avx512bf16_table() {
  using avx512bf16::Simd;
  static const Table table = [] {
    Table t = avx512bf16::make_table("avx512bf16");
    t.pair = [](const float* even, const float* odd, uint32_t* words) {
      Simd::store_words(words, Simd::pair(Simd::load(even), Simd::load(odd)));
    };
    t.store_rounded = [](const float* in, uint16_t* out) {
      Simd::store_rounded(out, Simd::load(in));
    };
    t.mac_words = [](const uint32_t* word, const uint32_t* words, float* acc) {
      Simd::store(acc,
                  Simd::mac(Simd::broadcast_word(word), Simd::load_words(words), Simd::load(acc)));
    };
    return t;
  }();
  return table;
}

}  // namespace tilewise::cpu::simd_test
