// The loads of whole tiles, as few instructions as they can be: they stand in the loop over keys.
#pragma once

#include "cuda/ptx/cp_async.cuh"
#include "cuda/tile/copy.cuh"

namespace tilewise::cuda {

// A thread block copies tiles of kRows x kCols whose rows lie `stride` elements apart. A thread has
// one chunk of the rows row(), row() + kStep, ...; chunks from `dim` on (a multiple of 8 but in
// elements()) are nobody's.
template <int kThreads, int kRows, int kCols>
struct TileCopy {
  using Tile = SmemTile<kRows, kCols>;
  static constexpr int kRound = kThreads / Tile::kChunks;  // rows that the threads hold at once
  static constexpr int kStep = kRound >= 8 ? kRound / 8 * 8 : kRound >= 4 ? 4 : 2;
  static_assert(kRound >= kStep && kRows % kStep == 0);

  static __device__ __forceinline__ int row() {
    return static_cast<int>(threadIdx.x) / Tile::kChunks;
  }
  static __device__ __forceinline__ int chunk() {
    return static_cast<int>(threadIdx.x) % Tile::kChunks;
  }
  // This thread's first chunk of the tile that begins at `first`.
  static __device__ __forceinline__ const uint16_t* source(const uint16_t* first, int64_t stride) {
    return first + row() * stride + 8 * chunk();
  }

  // All rows, by cp.async. `from` is source() of the tile.
  static __device__ __forceinline__ void whole(Tile& tile, const uint16_t* from, int64_t stride,
                                               int dim) {
    if (!takes_part(dim)) return;
    const uint32_t to = tile.address(row(), chunk());
#pragma unroll
    for (int i = 0; i < kRows; i += kStep) {
      ptx::cp_async_16(below(to, i), from);
      from += kStep * stride;
    }
  }
  // The first `rows` rows, at least one; the last of them stands for those that are missing.
  static __device__ __forceinline__ void some(Tile& tile, const uint16_t* from, int64_t stride,
                                              int dim, int rows) {
    if (rows >= kRows) return whole(tile, from, stride, dim);
    if (!takes_part(dim)) return;
    const int last = rows - 1 - row();
#pragma unroll 1
    for (int i = 0; i < kRows; i += kStep) {
      ptx::cp_async_16(tile.address(row() + i, chunk()), from + min(i, last) * stride);
    }
  }
  // The first `rows` rows, element by element; zeros elsewhere. Done when the function returns.
  static __device__ __forceinline__ void elements(Tile& tile, const uint16_t* from, int64_t stride,
                                                  int dim, int rows) {
    if (!takes_part(kCols)) return;
#pragma unroll 1
    for (int i = 0; i < kRows; i += kStep) {
      const bool there = row() + i < rows && 8 * chunk() < dim;
      *tile.chunk(row() + i, chunk()) =
          there ? load_chunk(from + i * stride - 8 * chunk(), chunk(), dim)
                : make_uint4(0, 0, 0, 0);
    }
  }
  // f(chunk) for each of this thread's chunks of the tile: those that it has loaded, so that they
  // are there for it as soon as its own loads are.
  template <class F>
  static __device__ __forceinline__ void for_own(Tile& tile, const F& f) {
    if (!takes_part(kCols)) return;
#pragma unroll
    for (int i = 0; i < kRows; i += kStep) f(*tile.chunk(row() + i, chunk()));
  }

 private:
  static __device__ __forceinline__ bool takes_part(int dim) {
    return 8 * chunk() < dim && (kThreads == kStep * Tile::kChunks || row() < kStep);
  }
  // The address i rows (a multiple of kStep) below that of row(): where kStep is less than 8 they
  // differ in a bit of the swizzle.
  static __device__ __forceinline__ uint32_t below(uint32_t address, int i) {
    return Tile::advance(address ^ ((i & 7) << 4), i, 0);
  }
};

}  // namespace tilewise::cuda
