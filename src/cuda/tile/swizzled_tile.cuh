// A tile of 16-bit elements in shared memory as wgmma and the copy engine know it: parts of 64
// columns beside each other, each of rows of 128 bytes whose chunks are swizzled.
#pragma once

#include <cstdint>

#include "cuda/tile/smem_tile.cuh"

namespace tilewise::cuda {

// Columns [64 i, 64 i + 64) are part i. Its row r has 8 chunks of 16 bytes, and chunk c lies where
// chunk c XOR (r % 8) would: the 128-byte swizzle, a function of the address because parts begin at
// multiples of 1024 bytes. A tile of 96 columns has room for 128.
template <int kRows, int kCols>
struct alignas(1024) SwizzledTile {
  static_assert(kRows % 8 == 0 && kCols % 16 == 0);
  static constexpr int kParts = (kCols + 63) / 64;
  static constexpr int kPartCols = 64;
  static constexpr int kPartBytes = kRows * 128, kBytes = kParts * kPartBytes;

  uint16_t data[kBytes / 2];

  __device__ __forceinline__ uint32_t part(int i) const {
    return smem_address(data) + i * kPartBytes;
  }
  // Element offset of a chunk.
  static __device__ __forceinline__ int offset(int row, int chunk) {
    return (chunk / 8 * kPartBytes + row * 128 + ((chunk % 8) ^ (row & 7)) * 16) / 2;
  }
  __device__ __forceinline__ uint32_t address(int row, int chunk) const {
    return smem_address(data) + 2 * offset(row, chunk);
  }
  // From the address of a chunk to that `chunks` beyond it, for chunk + chunks without a carry.
  static __device__ __forceinline__ uint32_t advance(uint32_t address, int chunks) {
    return (address ^ ((chunks % 8) << 4)) + chunks / 8 * kPartBytes;
  }
  // Elements 2 i and 2 i + 1 of a chunk.
  __device__ __forceinline__ uint32_t pair(int row, int chunk, int i) const {
    return reinterpret_cast<const uint32_t*>(data + offset(row, chunk))[i];
  }
};

// wgmma finds a tile by a descriptor (PTX ISA 9.7.15, matrix descriptor): bits 0-13 the address /
// 16, 16-29 and 32-45 the leading and the stride byte offset / 16, 62-63 the swizzle (1: 128
// bytes). The stride offset leads to the next 8 rows. The leading one leads to the next 64 columns
// when columns are wgmma's N, and means nothing when they are its K.
template <int kRows, int kCols>
__device__ __forceinline__ uint64_t descriptor(const SwizzledTile<kRows, kCols>& tile) {
  constexpr uint64_t kStride = 1024 >> 4;
  constexpr uint64_t kLeading = SwizzledTile<kRows, kCols>::kPartBytes >> 4;
  static_assert(kLeading < 1 << 14);
  return 1ull << 62 | kStride << 32 | kLeading << 16 | (tile.part(0) & 0x3ffff) >> 4;
}
// From the descriptor of a tile to that of its columns [16 step, ...), columns being K...
template <int kRows, int kCols>
__device__ __forceinline__ constexpr uint64_t column_step(int step) {
  return (step / 4 * SwizzledTile<kRows, kCols>::kPartBytes + step % 4 * 32) >> 4;
}
// ...and to that of its rows [16 step, ...), rows being K.
__device__ __forceinline__ constexpr uint64_t row_step(int step) { return step * (16 * 128) >> 4; }

}  // namespace tilewise::cuda
