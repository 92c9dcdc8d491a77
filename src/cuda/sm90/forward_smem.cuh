// What the roles of the sm_90 forward share: shared memory, and the order of the tiles.
#pragma once

#include "cuda/common/place.cuh"
#include "cuda/params.h"
#include "cuda/sm90/forward_tile.h"
#include "cuda/sm90/tile_order.cuh"
#include "cuda/tile/pipeline.cuh"
#include "cuda/tile/swizzled_tile.cuh"

namespace tilewise::cuda::sm90 {

// A tile: a block of query rows of a head.
struct TilePlace {
  int batch, head, kv_head;
  int flat_head;  // head of all batches
  int first_row;  // its first query
  int n_q, n_k;

  __device__ __forceinline__ BasicLengths<int> lengths() const { return {n_q, n_k}; }
  __device__ __forceinline__ int query(const ForwardParams&, int row) const {
    return first_row + row;
  }
};

// What the roles are told to do next.
struct Work {
  static constexpr int kNoTile = -1;

  int tile = kNoTile;  // kNoTile: nothing
  // When a tile is computed again: first with references that move where they did, because values
  // that are not finite may have been all the trouble; then, right after, with references of the
  // rows still in trouble that move in every step. The other rows get the same bits each time.
  int moving = 0;
  TilePlace at = {};
  Steps kv = {};  // of block_n keys

  __device__ __forceinline__ bool some() const { return tile != kNoTile; }
};

template <ForwardTile kTile>
struct ForwardSmem {
  SwizzledTile<64, kTile.head_dim> q[kTile.q_buffers][kTile.warpgroups];  // O on its way out
  SwizzledTile<kTile.block_n, kTile.head_dim> k[kTile.stages], v[kTile.stages];
  StageBarriers<kTile.stages> k_barriers, v_barriers;
  // A Q buffer's life: empty, Q is full, O is full, empty.
  Barrier q_full[kTile.q_buffers][kTile.warpgroups];
  Barrier o_full[kTile.q_buffers][kTile.warpgroups];
  Barrier q_empty[kTile.q_buffers][kTile.warpgroups];
  bool trouble[kTile.q_buffers][kTile.warpgroups];  // has the O there rows to be computed again?
  // First the producer tells which tile comes next, then the storer which ones are to be computed
  // again; each of them reads what the other one posts, and so does each warp of the consumers.
  Mailbox<Work> work;

  __device__ __forceinline__ void init() {
    constexpr int kWarps = 4 * kTile.warpgroups;
    k_barriers.init(1, kWarps);
    v_barriers.init(1, kWarps);
    work.init(kWarps + 1);
    for (int i = 0; i < kTile.q_buffers; ++i) {
      for (int w = 0; w < kTile.warpgroups; ++w) {
        q_full[i][w].init(1);
        o_full[i][w].init(4);
        q_empty[i][w].init(1);
        trouble[i][w] = false;
      }
    }
    ptx::fence_mbarrier_init();
  }
};

// Under a band the last rows, which see most keys, go first: short tiles fill the gaps at the end.
template <ForwardTile kTile>
__device__ __forceinline__ TilePlace place_of(const TileForwardParams& p, int tile) {
  const auto [head, m_block] =
      in_sections(tile, p.m_blocks, p.batch * p.num_heads, p.section_heads, p.last_section);
  TilePlace at;
  at.flat_head = head;
  at.batch = head / p.num_heads;
  at.head = head - at.batch * p.num_heads;
  at.kv_head = at.head / p.group;
  at.first_row = (kTile.banded() ? p.m_blocks - 1 - m_block : m_block) * kTile.block_m();
  at.n_q = p.seqlen_q;
  at.n_k = p.seqlen_k;
  return at;
}

// Steps of block_n keys of a tile, one at least: rows that see nothing take a step that shows them
// nothing. Every row that sees a key of a full step sees one in the first step or in one at the
// edge, where references are set: where the first row's keys end with a step, that is an edge too.
template <ForwardTile kTile>
__device__ __forceinline__ Steps steps_of(const TileForwardParams& p, const TilePlace& at) {
  if constexpr (!kTile.banded()) {
    const int full = at.n_k / kTile.block_n;
    return {0, 0, full, full + (at.n_k % kTile.block_n != 0 ? 1 : 0)};
  } else {
    const int end_row = at.first_row + kTile.block_m();
    Steps kv = p.mask.kv_range(at.first_row, end_row, at.lengths(), kTile.block_n);
    if (kv.empty()) return {0, 0, 0, 1};
    const int first_end = p.mask.keys_of(at.first_row, at.lengths()).end;
    if (kv.full_end < kv.end && first_end == kv.full_end * kTile.block_n) --kv.full_end;
    if (kv.full_end <= kv.full_begin) kv.full_begin = kv.full_end = kv.begin;
    return kv;
  }
}

template <ForwardTile kTile>
__device__ __forceinline__ Work work_of(const TileForwardParams& p, int tile, bool moving = false) {
  Work work;
  work.tile = tile;
  work.moving = moving ? 1 : 0;
  work.at = place_of<kTile>(p, tile);
  work.kv = steps_of<kTile>(p, work.at);
  return work;
}

}  // namespace tilewise::cuda::sm90
