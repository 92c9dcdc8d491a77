// What the roles of the sm_90 backward share: shared memory, and the order of the tiles.
#pragma once

#include "cuda/common/sequence_place.cuh"
#include "cuda/params.h"
#include "cuda/sm90/backward_tile.h"
#include "cuda/sm90/tile_order.cuh"
#include "cuda/tile/pipeline.cuh"
#include "cuda/tile/swizzled_tile.cuh"

namespace tilewise::cuda::sm90 {

// What the roles are told to do next: a tile, the blocks of query rows that see it, of each query
// head of the group.
struct KeyWork {
  static constexpr int kNoTile = -1;

  int tile = kNoTile;  // kNoTile: nothing
  int batch = 0, kv_head = 0, n_block = 0;
  BasicTileRange<int> blocks = {};

  __device__ __forceinline__ bool some() const { return tile != kNoTile; }
  __device__ __forceinline__ int steps(const BackwardParams& p) const {
    return (blocks.end - blocks.begin) * p.group;
  }
};

// dQ of a step, or dV or dK of a tile, on its way out.
template <BackwardTile kTile>
union Outgoing {
  float dq[64 * kTile.dq_columns()];  // atoms (dq_sum.cuh), a warp's after the other's
  SwizzledTile<64, kTile.head_dim> gradient;
};

template <BackwardTile kTile>
struct BackwardSmem {
  using Keys = SwizzledTile<kTile.block_n, kTile.head_dim>;
  using Queries = SwizzledTile<kTile.block_m, kTile.head_dim>;
  using ScoreGradients = SwizzledTile<kTile.block_n, kTile.block_m>;
  static constexpr int kStages = kTile.stages;

  Keys k, v;
  Queries q[kStages], do_[kStages];
  ScoreGradients ds[kStages];  // dS^T
  Outgoing<kTile> out[kTile.warpgroups][kTile.out_buffers];
  float lse[kStages][kTile.block_m], delta[kStages][kTile.block_m];
  StageBarriers<1> k_barriers, v_barriers;
  StageBarriers<kStages> q_barriers, do_barriers;  // with lse, with delta
  Barrier ds_full[kStages];
  StageBarriers<kTile.out_buffers> out_barriers[kTile.warpgroups];
  bool taken_out[4 * kTile.warpgroups];  // a warp's, in a tile (backward_nonfinite.cuh)
  Mailbox<KeyWork> work;

  __device__ __forceinline__ void init() {
    constexpr int kWarps = 4 * kTile.warpgroups;
    k_barriers.init(1, kWarps);
    v_barriers.init(1, kWarps);
    q_barriers.init(1, 32 * kWarps);
    do_barriers.init(1, 32 * kWarps);
    for (Barrier& full : ds_full) full.init(kWarps);
    for (auto& barriers : out_barriers) barriers.init(4, 1);
    work.init(kWarps + kTile.warpgroups);
    for (bool& taken : taken_out) taken = false;
    ptx::fence_mbarrier_init();
  }
};

__device__ __forceinline__ SequencePlace sequence_of(const TileBackwardParams& p, int batch) {
  SequencePlace at;
  at.batch = batch;
  at.n_q = p.seqlen_q;
  at.n_k = p.seqlen_k;
  at.padded_heads = p.padded_q;
  at.padded_start = int64_t{batch} * p.num_heads * p.padded_q;
  return at;
}

// Blocks of keys of all heads. Under a band the first keys, which most rows see, go first: short
// tiles fill the gaps at the end. Deterministic: they go last, as each tile adds to dQ after those
// of later keys, which under a causal mask reach a row sooner.
template <BackwardTile kTile>
__device__ __forceinline__ KeyWork work_of(const TileBackwardParams& p, int tile) {
  const auto [head, block] = in_sections(tile, p.n_blocks, p.batch * p.num_heads / p.group,
                                         p.section_heads, p.last_section);
  const int kv_heads = p.num_heads / p.group;
  KeyWork work;
  work.tile = tile;
  work.batch = head / kv_heads;
  work.kv_head = head - work.batch * kv_heads;
  work.n_block = p.dq_turn != nullptr ? p.n_blocks - 1 - block : block;
  const int key = work.n_block * kTile.block_n;
  work.blocks =
      (kTile.banded() ? p.mask : MaskSpec{})
          .q_range(key, key + kTile.block_n, sequence_of(p, work.batch).lengths(), kTile.block_m);
  return work;
}

}  // namespace tilewise::cuda::sm90
