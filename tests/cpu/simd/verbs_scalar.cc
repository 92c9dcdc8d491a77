#include "cpu/simd/scalar.h"
#include "cpu/vector_math.inl"

#include "verbs.inl"

namespace tilewise::cpu::simd_test {

const Table& scalar_table() {
  static const Table table = scalar::make_table("scalar");
  return table;
}

}  // namespace tilewise::cpu::simd_test
