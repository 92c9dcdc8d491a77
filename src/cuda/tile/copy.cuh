// Rows between global memory and a tile in shared memory.
#pragma once

#include <cstdint>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/tile/smem_tile.cuh"

namespace tilewise::cuda {

// Chunk `chunk` of a row of `dim` elements, zeros beyond them.
__device__ __forceinline__ uint4 load_chunk(const uint16_t* row, int chunk, int dim) {
  uint32_t pairs[4] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (8 * chunk + j < dim) {
      pairs[j / 2] |= static_cast<uint32_t>(row[8 * chunk + j]) << (16 * (j % 2));
    }
  }
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

__device__ __forceinline__ uint4 load_chunk(const uint16_t* row, int chunk, int dim, bool vectors) {
  if (vectors && 8 * chunk + 8 <= dim) return *reinterpret_cast<const uint4*>(row + 8 * chunk);
  return load_chunk(row, chunk, dim);
}

// Elements [0, dim) of rows [0, rows) of a matrix, at row(r), into the tile; zeros elsewhere. With
// kVectors the rows start at multiples of 16 bytes and the copy is one of cp.async, to be committed
// and waited for by the caller; else it is done when the function returns.
template <bool kVectors, int kThreads, int kRows, int kCols, class Row>
__device__ __forceinline__ void load_rows(SmemTile<kRows, kCols>& tile, const Row& row, int rows,
                                          int dim) {
  constexpr int kChunks = SmemTile<kRows, kCols>::kChunks;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int r = i / kChunks, chunk = i % kChunks, left = r < rows ? dim - 8 * chunk : 0;
    if constexpr (kVectors) {
      ptx::cp_async_16(tile.address(r, chunk), left > 0 ? row(r) + 8 * chunk : row(0),
                       left > 0 ? 2 * min(left, 8) : 0);
    } else {
      *tile.chunk(r, chunk) = left > 0 ? load_chunk(row(r), chunk, dim) : make_uint4(0, 0, 0, 0);
    }
  }
}

// The same by cp.async for rows `stride` elements apart, the first at `first`; kAllRows: none is
// missing.
template <int kThreads, bool kAllRows, int kRows, int kCols>
__device__ __forceinline__ void load_tile(SmemTile<kRows, kCols>& tile, const uint16_t* first,
                                          int64_t stride, int rows, int dim) {
  using Tile = SmemTile<kRows, kCols>;
  constexpr int kStep = kThreads / Tile::kChunks / 8 * 8;  // rows of one round
  static_assert(kStep > 0 && kRows % kStep == 0);
  const int thread = static_cast<int>(threadIdx.x);
  const int r = thread / Tile::kChunks, chunk = thread % Tile::kChunks;
  if (kThreads % Tile::kChunks != 0 && r >= kStep) return;
  const uint32_t to = tile.address(r, chunk);
  const int left = dim - 8 * chunk, bytes = left > 0 ? 2 * min(left, 8) : 0;
  // What is not there is not read, but its address must be one that is.
  const uint16_t* from =
      first + (left > 0 ? 8 * chunk : 0) + (kAllRows || r < rows ? r * stride : 0);
#pragma unroll
  for (int i = 0; i < kRows; i += kStep) {
    const bool there = kAllRows || r + i < rows;
    ptx::cp_async_16(Tile::advance(to, i, 0), there ? from : first, there ? bytes : 0);
    from += kStep * stride;
  }
}

// The first `count` elements of a chunk to a row.
__device__ __forceinline__ void store_elements(uint16_t* to, uint4 x, int count) {
  const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (j < count) to[j] = static_cast<uint16_t>(pairs[j / 2] >> (16 * (j % 2)));
  }
}

// Rows [begin, end) of the tile to global memory, by one warp. row(r) is the address of row r.
template <int kRows, int kCols, class Row>
__device__ __forceinline__ void store_rows(SmemTile<kRows, kCols>& tile, const Row& row, int begin,
                                           int end, int dim, bool vectors) {
  constexpr int kChunks = SmemTile<kRows, kCols>::kChunks, kStep = 32 / kChunks;
  const int lane = static_cast<int>(threadIdx.x) % 32, chunk = lane % kChunks;
  const int count = min(dim - 8 * chunk, 8);
  if (lane >= kStep * kChunks || count <= 0) return;
#pragma unroll 1
  for (int r = begin + lane / kChunks; r < end; r += kStep) {
    uint16_t* to = row(r) + 8 * chunk;
    const uint4 x = *tile.chunk(r, chunk);
    if (vectors && count == 8) {
      *reinterpret_cast<uint4*>(to) = x;
    } else {
      store_elements(to, x, count);
    }
  }
}

}  // namespace tilewise::cuda
