#include "cpu/simd/avx2.h"
#include "cpu/vector_math.inl"

#include "verbs.inl"

namespace tilewise::cpu::simd_test {

const Table& avx2_table() {
  static const Table table = avx2::make_table("avx2");
  return table;
}

}  // namespace tilewise::cpu::simd_test
