// How the sm_90 backward cuts its problem.
#pragma once

#include "core/hd.h"
#include "cuda/tile_config.h"

namespace tilewise::cuda::sm90 {

// A tile is a block of 128 keys of a kv head, 64 of them for each of two warpgroups; its steps are
// blocks of block_m query rows. A warpgroup has the same keys in all products but one: of dQ it has
// half of the rows, or half of the columns.
struct BackwardTile {
  int head_dim = 0;  // of the tile: q, k, v and do are filled up with zeros to it
  int block_m = 0;
  int out_buffers = 0;      // of a warpgroup, for what leaves shared memory
  bool pack_early = false;  // P becomes an operand while dP is under way
  Variant variant = Variant::kFull;

  static constexpr int block_n = 128, warpgroups = 2, stages = 2;
  TILEWISE_HD constexpr bool banded() const { return variant != Variant::kFull; }
  static constexpr int consumers() { return 128 * warpgroups; }  // threads
  static constexpr int threads() { return consumers() + 128; }
  // Of a thread; all warpgroups together have what the launch gives each of them.
  static constexpr int mover_registers() { return 40; }
  static constexpr int consumer_registers() { return 232; }

  TILEWISE_HD constexpr bool splits_dq_rows() const { return block_m == 128; }
  TILEWISE_HD constexpr int dq_columns() const {  // of a warpgroup, 64 rows
    return splits_dq_rows() ? head_dim : head_dim / 2;
  }
  TILEWISE_HD constexpr int out_bytes() const {
    const int dq = 64 * dq_columns() * 4, gradient = 64 * head_dim * 2;
    return dq > gradient ? dq : gradient;
  }
  TILEWISE_HD constexpr int smem_bytes() const {
    const int row_bytes = 2 * head_dim;
    return 2 * block_n * row_bytes + 2 * stages * block_m * row_bytes +  // K, V, Q, dO
           stages * 2 * block_n * block_m +                              // dS
           warpgroups * out_buffers * out_bytes() + 2 * stages * 4 * block_m +
           1024;  // lse, delta, and barriers
  }
};

// docs/tuning/backward_sm90.md
TILEWISE_HD constexpr BackwardTile backward_tile(int head_dim, Variant variant) {
  switch (head_dim) {
    case 64:
      return {64, 128, 2, false, variant};
    default:
      return {128, 64, 2, true, variant};
  }
}

}  // namespace tilewise::cuda::sm90
