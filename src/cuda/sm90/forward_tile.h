// How the sm_90 forward cuts its problem.
#pragma once

#include "core/hd.h"
#include "cuda/tile_config.h"

namespace tilewise::cuda::sm90 {

struct ForwardTile {
  int head_dim = 0;    // of the tile: q, k and v are filled up with zeros to it
  int block_n = 0;     // keys of a step
  int warpgroups = 0;  // of consumers; each has 64 query rows of its own
  int stages = 0;      // K tiles in shared memory, and V tiles
  int q_buffers = 0;   // Q tiles; O leaves by way of its Q's, but where there is only one
  bool q_in_registers = false;
  bool output_first = false;  // wait for O before the exponentials, not after them
  Variant variant = Variant::kFull;

  TILEWISE_HD constexpr bool banded() const { return variant != Variant::kFull; }
  TILEWISE_HD constexpr bool general() const { return variant == Variant::kGeneral; }
  // Three warpgroups have no registers for a window's left end.
  TILEWISE_HD constexpr bool has_left_end() const { return banded() && warpgroups == 2; }
  // The next tile's Q takes the place of this one's as soon as its last scores are there; O goes
  // from registers to global memory.
  TILEWISE_HD constexpr bool one_q() const { return q_buffers == 1; }
  // What consumers and the storer count O by. Three are enough where no buffer is waited for: the
  // fourth tile is not told before the storer has read about the second.
  TILEWISE_HD constexpr int o_slots() const { return one_q() ? 3 : q_buffers; }
  TILEWISE_HD constexpr int block_m() const { return 64 * warpgroups; }
  TILEWISE_HD constexpr int consumers() const { return 128 * warpgroups; }  // threads
  TILEWISE_HD constexpr int threads() const { return consumers() + 128; }
  // Of a thread; all warpgroups together have what the launch gives each of them.
  TILEWISE_HD constexpr int producer_registers() const { return warpgroups == 2 ? 40 : 32; }
  TILEWISE_HD constexpr int consumer_registers() const { return warpgroups == 2 ? 232 : 160; }
  TILEWISE_HD constexpr int smem_bytes() const {
    const int row_bytes = (head_dim + 63) / 64 * 128;
    return row_bytes * (q_buffers * block_m() + 2 * stages * block_n) + 1024;  // and barriers
  }
};

// rows: a choice at head_dim 64 only. 192 are faster, but for short sequences under a mask
// (docs/tuning/forward_sm90.md has what was measured).
TILEWISE_HD constexpr ForwardTile forward_tile(int head_dim, Variant variant, int rows) {
  switch (head_dim) {
    case 64:
      if (rows == 192) return {64, 128, 3, 4, 3, false, true, variant};
      // With q in registers the general variant would spill.
      return {64, 128, 2, 4, 4, variant != Variant::kGeneral, false, variant};
    case 96:
      return {96, 128, 2, 2, 3, false, true, variant};
    case 128:  // the general variant would spill with longer steps
      return {128, variant == Variant::kGeneral ? 96 : 128, 2, 2, 3, false, true, variant};
    case 192:
      return {192, 80, 2, 2, 2, false, true, variant};
    default:
      if (variant == Variant::kFull) return {256, 80, 2, 2, 1, false, true, variant};
      return {256, 48, 2, 2, 2, false, true, variant};
  }
}

}  // namespace tilewise::cuda::sm90
