// The kernels compiled for avx2; CMakeLists.txt has the flags. Nothing here may be shared with code
// compiled for another instruction set (tools/check_isa_symbols).
#include "cpu/simd/avx2.h"

#include "cpu/vector_math.inl"

#include "cpu/backward.inl"
#include "cpu/decode.inl"
#include "cpu/forward.inl"
