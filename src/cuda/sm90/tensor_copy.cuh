// Tiles between tensors and shared memory, by the copy engine: a box for each of a tile's parts.
#pragma once

#include "cuda/params.h"
#include "cuda/ptx/tma.cuh"
#include "cuda/tile/pipeline.cuh"
#include "cuda/tile/swizzled_tile.cuh"

namespace tilewise::cuda::sm90 {

// `full` gets the tile's bytes, and `more_bytes` that the caller has loaded.
template <class Tile>
__device__ __forceinline__ void load(const Tile& tile, const TensorMap& map, int row, int head,
                                     int batch, Barrier& full, int more_bytes = 0) {
  full.arrive_expecting(Tile::kBytes + more_bytes);
#pragma unroll
  for (int i = 0; i < Tile::kParts; ++i) {
    ptx::tma_load(tile.part(i), &map, {i * Tile::kPartCols, row, head, batch}, full.address());
  }
}
template <class Tile>
__device__ __forceinline__ void store(const Tile& tile, const TensorMap& map, int row, int head,
                                      int batch) {
#pragma unroll
  for (int i = 0; i < Tile::kParts; ++i) {
    ptx::tma_store(&map, {i * Tile::kPartCols, row, head, batch}, tile.part(i));
  }
}

}  // namespace tilewise::cuda::sm90
