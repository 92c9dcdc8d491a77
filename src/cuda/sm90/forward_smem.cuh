// What the roles of the sm_90 forward share: shared memory, and what they tell each other.
#pragma once

#include "cuda/sm90/forward_place.cuh"
#include "cuda/tile/pipeline.cuh"
#include "cuda/tile/swizzled_tile.cuh"

namespace tilewise::cuda::sm90 {

// What the roles are told to do next.
template <ForwardTile kTile>
struct Work {
  static constexpr int kNoTile = -1;

  int tile = kNoTile;  // kNoTile: nothing
  // When a tile is computed again: first with references that move where they did, because values
  // that are not finite may have been all the trouble; then, right after, with references of the
  // rows still in trouble that move in every step. The other rows get the same bits each time.
  int moving = 0;
  PlaceOf<kTile> at = {};
  Steps kv = {};  // of block_n keys

  __device__ __forceinline__ bool some() const { return tile != kNoTile; }
};

template <ForwardTile kTile>
struct ForwardSmem {
  SwizzledTile<64, kTile.head_dim> q[kTile.q_buffers][kTile.warpgroups];  // O on its way out
  SwizzledTile<kTile.block_n, kTile.head_dim> k[kTile.stages], v[kTile.stages];
  StageBarriers<kTile.stages> k_barriers, v_barriers;
  // A Q buffer's life: empty, Q is full, O is full, empty. One alone has no O.
  Barrier q_full[kTile.q_buffers][kTile.warpgroups];
  Barrier o_full[kTile.o_slots()][kTile.warpgroups];
  Barrier q_empty[kTile.q_buffers][kTile.warpgroups];
  int trouble[kTile.o_slots()][kTile.warpgroups];  // has the O there rows to be computed again?
  // First the producer tells which tile comes next, then the storer which ones are to be computed
  // again; each of them reads what the other one posts, and so does each warp of the consumers.
  Mailbox<Work<kTile>> work;

  __device__ __forceinline__ void init() {
    constexpr int kWarps = 4 * kTile.warpgroups;
    k_barriers.init(1, kWarps);
    v_barriers.init(1, kWarps);
    work.init(kWarps, 1);
    for (int i = 0; i < kTile.q_buffers; ++i) {
      for (int w = 0; w < kTile.warpgroups; ++w) {
        q_full[i][w].init(1);
        q_empty[i][w].init(kTile.one_q() ? 4 : 1);
      }
    }
    for (int i = 0; i < kTile.o_slots(); ++i) {
      for (int w = 0; w < kTile.warpgroups; ++w) {
        o_full[i][w].init(4);
        trouble[i][w] = 0;
      }
    }
    ptx::fence_mbarrier_init();
  }
};

template <ForwardTile kTile>
__device__ __forceinline__ Work<kTile> work_of(const TileForwardParams& p, int tile,
                                               bool moving = false) {
  Work<kTile> work;
  work.tile = tile;
  work.moving = moving ? 1 : 0;
  work.at = place_of<kTile>(p, tile);
  work.kv = steps_of<kTile>(p, work.at);
  return work;
}

}  // namespace tilewise::cuda::sm90
