// The kernels compiled for avx512bf16; CMakeLists.txt has the flags. Nothing here may be shared
// with code compiled for another instruction set (tools/check_isa_symbols).
#include "cpu/simd/avx512bf16.h"

#include "cpu/vector_math.inl"

#include "cpu/backward.inl"
#include "cpu/decode.inl"
#include "cpu/forward.inl"
