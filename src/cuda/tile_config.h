// TileConfig: how a kernel cuts its problem, as one structural value. The host's plan and the
// kernel's instantiation both ask the same function for it, so nothing has to match by hand.
#pragma once

#include "core/hd.h"

namespace tilewise::cuda {

// What a kernel leaves out, so that its instructions stay few: they are read from a cache too.
enum class Variant {
  kFull,     // every key is visible; scale > 0, no softcap or ALiBi, rows of 16-byte vectors
  kBanded,   // the same with causal and window masks
  kGeneral,  // everything
};

// The same source takes other registers on older architectures, so that a few choices that are the
// device's alone differ there. Never one that the host has to know.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kBeforeSm90 = true;
#else
constexpr bool kBeforeSm90 = false;
#endif

struct TileConfig {
  int head_dim = 0;       // of the tile: q, k and v are filled up with zeros to it
  int block_m = 0;        // query rows of a block
  int block_n = 0;        // keys of a step
  int warps = 0;          // each has block_m / warps query rows of its own
  int blocks_per_sm = 1;  // registers are limited so that so many fit
  bool one_loop = false;  // one body for edges and full tiles: fewer instructions, more registers
  Variant variant = Variant::kGeneral;

  TILEWISE_HD constexpr bool banded() const { return variant != Variant::kFull; }
  TILEWISE_HD constexpr bool general() const { return variant == Variant::kGeneral; }
  TILEWISE_HD constexpr int threads() const { return 32 * warps; }
  TILEWISE_HD constexpr int forward_smem_bytes() const {
    return 2 * head_dim * (block_m + 2 * block_n);
  }
};

// Rows of sm_80, forward. 32 query rows a warp where the registers allow it: the traffic of K and V
// from shared memory goes with the number of warps (docs/tuning/forward_sm80.md). The general
// variant has shorter steps where the longer ones would spill.
TILEWISE_HD constexpr TileConfig forward_tile_sm80(int head_dim, Variant variant) {
  const bool general = variant == Variant::kGeneral;
  switch (head_dim) {
    case 64:
      return {64, 128, general ? 64 : 128, 4, 2, false, variant};
    case 96:
      return {96, 128, 64, 4, 2, general, variant};
    case 128:
      return {128, 128, general ? 32 : 64, 4, 2, general, variant};
    case 192:
      return {192, 64, 64, 4, 2, true, variant};
    default:
      return {256, 64, 64, 4, 2, true, variant};
  }
}

// The variant that a kernel is compiled as: the full ones spill there, the banded ones do not, and
// compute the same.
TILEWISE_HD constexpr Variant forward_variant_sm80(int head_dim, Variant variant) {
  const bool spills = head_dim == 64 || head_dim == 128;
  return kBeforeSm90 && spills && variant == Variant::kFull ? Variant::kBanded : variant;
}

}  // namespace tilewise::cuda
