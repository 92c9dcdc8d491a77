// BackwardTile: how a backward kernel cuts its problem, as one structural value that the host's
// plan and the kernel's instantiation both ask backward_tile_sm80() for.
#pragma once

#include "core/hd.h"
#include "cuda/tile_config.h"

namespace tilewise::cuda {

// A thread block has block_n keys and walks over blocks of block_m query rows. Its warps divide
// each product in the way that reads shared memory least:
//
//   S^T, dP^T  (block_n, block_m)   score_key_warps of them along the keys, the others the queries
//   dV, dK     (block_n, head_dim)  gradient_key_warps along the keys, the others the dimensions
//   dQ         (block_m, head_dim)  dq_query_warps along the queries, the others the dimensions
struct BackwardTile {
  int head_dim = 0;
  int block_m = 0, block_n = 0;
  int warps = 0;
  int score_key_warps = 0, gradient_key_warps = 0, dq_query_warps = 0;
  int chunk = 0;   // query columns of S^T and dP^T that a warp has in registers at a time
  int stages = 1;  // blocks of query rows in shared memory
  int blocks_per_sm = 1;
  Variant variant = Variant::kGeneral;

  TILEWISE_HD constexpr bool banded() const { return variant != Variant::kFull; }
  TILEWISE_HD constexpr bool general() const { return variant == Variant::kGeneral; }
  TILEWISE_HD constexpr int threads() const { return 32 * warps; }

  // When a warp has the same keys in all products and every dimension, P^T and dS^T are left
  // operands as they stand in its registers; else they go through shared memory.
  TILEWISE_HD constexpr bool register_operands() const {
    return score_key_warps == warps && gradient_key_warps == warps;
  }
  TILEWISE_HD constexpr int score_query_warps() const { return warps / score_key_warps; }
  TILEWISE_HD constexpr int gradient_dim_warps() const { return warps / gradient_key_warps; }
  TILEWISE_HD constexpr int dq_dim_warps() const { return warps / dq_query_warps; }
  TILEWISE_HD constexpr int score_key_atoms() const { return block_n / score_key_warps / 16; }
  TILEWISE_HD constexpr int gradient_key_atoms() const { return block_n / gradient_key_warps / 16; }
  TILEWISE_HD constexpr int score_queries() const { return block_m / score_query_warps(); }

  // K and V; P^T and dS^T; per stage Q and dO with lse and delta of their rows; a flag.
  TILEWISE_HD constexpr int smem_bytes() const {
    return 4 * head_dim * block_n + (register_operands() ? 2 : 4) * block_n * block_m +
           stages * (4 * head_dim * block_m + 8 * block_m) + 128;
  }
};

constexpr int kBackwardBlockM = 64;  // of every tile: the workspace is cut by it

// Rows of sm_80 (docs/tuning/backward_sm80.md). Chunks are as long as the registers allow without
// spills; the general variant has the softcap's derivative there too, and up to 128 it fits into
// the 99 KiB of shared memory of sm_86 and sm_89.
TILEWISE_HD constexpr BackwardTile backward_tile_sm80(int head_dim, Variant variant) {
  const bool general = variant == Variant::kGeneral, full = variant == Variant::kFull;
  switch (head_dim) {
    case 64:
      return {64, 64, 128, 4, 4, 4, 2, full ? 32 : 16, 1, 2, variant};
    case 96:
      return {96, 64, 64, 4, 4, 4, 2, full && !kBeforeSm90 ? 64 : 32, 2, 2, variant};
    case 128:
      if (general) return {128, 64, 64, 4, 4, 4, kBeforeSm90 ? 2 : 4, 16, 1, 2, variant};
      return {128, 64, 128, 8, 4, 4, full ? 4 : 2, kBeforeSm90 ? 16 : 32, 2, 1, variant};
    case 192:
      return {192, 64, 64, 8, 2, 2, 2, 16, 2, 1, variant};
    default:
      return {256, 64, 64, 8, 2, 2, 2, 16, general ? 1 : 2, 1, variant};
  }
}

}  // namespace tilewise::cuda
