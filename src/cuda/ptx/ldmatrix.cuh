// Matrix fragments from shared memory (PTX ISA 9.7.14.5.15).
#pragma once

#include <cstdint>

namespace tilewise::ptx {

// Four 8 x 8 matrices of 16-bit elements. Lane 8 i + r gives the address of row r of matrix i
// (16 bytes, aligned to that); lane l gets in out[i] elements 2 (l % 4) and 2 (l % 4) + 1 of row
// l / 4 of matrix i.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&out)[4], uint32_t smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(smem)
               : "memory");
}
// The same with each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&out)[4], uint32_t smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(smem)
               : "memory");
}

}  // namespace tilewise::ptx
