// Matrix fragments to shared memory (PTX ISA 9.7.14, stmatrix). sm_90.
#pragma once

#include <cstdint>

namespace tilewise::ptx {

// The inverse of ldmatrix_x4: lane 8 i + r gives the address of row r of matrix i (16 bytes,
// aligned to that); lane l's in[i] are elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4.
__device__ __forceinline__ void stmatrix_x4(uint32_t smem, const uint32_t (&in)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(smem),
               "r"(in[0]), "r"(in[1]), "r"(in[2]), "r"(in[3])
               : "memory");
}

}  // namespace tilewise::ptx
