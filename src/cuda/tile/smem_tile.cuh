// A tile of 16-bit elements in shared memory whose rows ldmatrix reads without bank conflicts.
#pragma once

#include <cstdint>

namespace tilewise::cuda {

__device__ __forceinline__ uint32_t smem_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Rows of kCols elements in chunks of 8 (16 bytes). A chunk lies at its column XOR some bits of the
// row, so that a column of chunks, 8 rows of it, touches all 32 banks.
template <int kRows, int kCols>
struct alignas(128) SmemTile {
  static constexpr int kChunks = kCols / 8;
  static_assert(kChunks % 4 == 0);
  static constexpr int kSwizzled = kChunks % 8 == 0 ? 7 : 3;  // bits of the column that may change

  static constexpr int kRowCount = kRows, kSize = kRows * kCols;
  uint16_t data[kSize];

  static __device__ __forceinline__ int swizzle(int row) {
    return kSwizzled == 7 ? row & 7 : (row >> 1) & 3;
  }
  static __device__ __forceinline__ int offset(int row, int chunk) {  // in elements
    return row * kCols + ((chunk ^ swizzle(row)) << 3);
  }
  __device__ __forceinline__ uint4* chunk(int row, int chunk) {
    return reinterpret_cast<uint4*>(data + offset(row, chunk));
  }
  __device__ __forceinline__ uint32_t address(int row, int chunk) const {
    return smem_address(data) + 2 * offset(row, chunk);
  }
  // The address `rows` (a multiple of 8) and `chunks` beyond address(row, chunk), for chunk +
  // chunks without a carry: one XOR and an immediate offset when both are constants.
  static __device__ __forceinline__ uint32_t advance(uint32_t address, int rows, int chunks) {
    return (address ^ ((chunks & kSwizzled) << 4)) + ((chunks & ~kSwizzled) << 4) +
           2 * rows * kCols;
  }
};

}  // namespace tilewise::cuda
