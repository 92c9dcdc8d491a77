#include "cpu/simd/avx512fp32.h"
#include "cpu/vector_math.inl"

#include "verbs.inl"

namespace tilewise::cpu::simd_test {

const Table& avx512_table() {
  static const Table table = avx512::make_table("avx512");
  return table;
}

}  // namespace tilewise::cpu::simd_test
