// The roles of the sm_90 forward that move data: one thread loads and takes tiles, one stores.
#pragma once

#include "cuda/sm90/forward_smem.cuh"
#include "cuda/sm90/tensor_copy.cuh"

namespace tilewise::cuda::sm90 {

template <ForwardTile kTile>
struct Producer {
  // A tile is taken so many steps before the end of the one before: earlier, and a thread block may
  // hold a long one back while others run out of work; later, and it would be waited for.
  static constexpr int kTakeAhead = 2;
  using Work = sm90::Work<kTile>;
  using At = PlaceOf<kTile>;

  const TileForwardParams& p;
  ForwardSmem<kTile>& smem;
  Ring<kTile.q_buffers> q = {};
  Ring<kTile.stages> k = {}, v = {};
  Ring<2> mail = {};

  __device__ __forceinline__ void run() {
    ptx::prefetch_tensor_map(&p.q_map);
    ptx::prefetch_tensor_map(&p.k_map);
    ptx::prefetch_tensor_map(&p.v_map);
    ptx::prefetch_tensor_map(&p.o_map);
    Work now = work_of<kTile>(p, static_cast<int>(blockIdx.x));
    if constexpr (kTile.general()) {
      if (now.at.empty()) now = work_on(take_tile());
    }
    begin(now);
    while (now.some()) {
      const Steps kv = now.kv;
      const At at = now.at;
      const int take = min(kv.end - 1, kv.begin + kTakeAhead);
      int tile = Work::kNoTile;
      for (int n_block = kv.end - 1; n_block >= kv.begin; --n_block) {
        if (n_block == take) tile = take_tile();
        if (n_block > kv.begin) {
          load_keys(at, n_block - 1);
        } else {  // the next tile's first scores run beside this tile's last product
          now = tile == Work::kNoTile ? Work() : work_of<kTile>(p, tile);
          begin(now);
        }
        load_values(at, n_block);
      }
    }
    for (now = read(); now.some(); now = read()) load_again(now);
  }
  __device__ __forceinline__ Work read() { return smem.work.read_alone(mail); }

  // Tells everybody, and loads what the tile's first scores need.
  __device__ __forceinline__ void begin(const Work& work) {
    smem.work.post(mail, work);
    if (!work.some()) return;
    load_queries(work.at);
    load_keys(work.at, work.kv.end - 1);
  }
  __device__ __forceinline__ void load_again(const Work& work) {
    load_queries(work.at);
    for (int n_block = work.kv.end - 1; n_block >= work.kv.begin; --n_block) {
      load_keys(work.at, n_block);
      load_values(work.at, n_block);
    }
  }

  __device__ __forceinline__ Work work_on(int tile) const {
    return tile == Work::kNoTile ? Work() : work_of<kTile>(p, tile);
  }
  __device__ __forceinline__ int take_tile() {
    if (p.next_tile == nullptr) return Work::kNoTile;
    int tile = static_cast<int>(gridDim.x) + atomicAdd(p.next_tile, 1);
    if constexpr (kTile.general()) {
      while (tile < p.num_tiles && place_of<kTile>(p, tile).empty()) {
        tile = static_cast<int>(gridDim.x) + atomicAdd(p.next_tile, 1);
      }
    }
    return tile < p.num_tiles ? tile : Work::kNoTile;
  }
  __device__ __forceinline__ void load_queries(const At& at) {
#pragma unroll
    for (int w = 0; w < kTile.warpgroups; ++w) {
      smem.q_empty[q.stage()][w].wait(q.phase() ^ 1);
      if constexpr (kTile.general()) {
        if (p.pack > 1) {
          load_packed(at, w);
          continue;
        }
      }
      load(smem.q[q.stage()][w], p.q_map, at.q_start + at.first_row + 64 * w, at.first_head,
           at.tensor_batch(p), smem.q_full[q.stage()][w]);
    }
    q.advance();
  }
  // Heads first, then queries: the map's axes have changed places.
  __device__ __forceinline__ void load_packed(const At& at, int w) {
    load(smem.q[q.stage()][w], p.q_map, at.first_head, at.q_start + at.query(p, 64 * w),
         at.tensor_batch(p), smem.q_full[q.stage()][w]);
  }
  __device__ __forceinline__ void load_keys(const At& at, int n_block) {
    smem.k_barriers.wait_empty(k);
    load(smem.k[k.stage()], p.k_map, at.k_start + n_block * kTile.block_n, at.kv_head,
         at.tensor_batch(p), smem.k_barriers.full[k.stage()]);
    k.advance();
  }
  __device__ __forceinline__ void load_values(const At& at, int n_block) {
    smem.v_barriers.wait_empty(v);
    load(smem.v[v.stage()], p.v_map, at.k_start + n_block * kTile.block_n, at.kv_head,
         at.tensor_batch(p), smem.v_barriers.full[v.stage()]);
    v.advance();
  }
};

// Sends O out, but for tiles in trouble: those it keeps in a list (a tile's link leads to the one
// before it), and after the last tile it has them computed again.
template <ForwardTile kTile>
struct Storer {
  using Work = sm90::Work<kTile>;
  using At = PlaceOf<kTile>;

  const TileForwardParams& p;
  ForwardSmem<kTile>& smem;
  Ring<kTile.o_slots()> o = {};
  Ring<2> mail = {};
  int last_redo = Work::kNoTile, num_redos = 0;

  __device__ __forceinline__ void run() {
    for (Work now = read(); now.some(); now = read()) {
      bool trouble = false;
#pragma unroll
      for (int w = 0; w < kTile.warpgroups; ++w) {
        if (wait(w)) {
          trouble = true;
        } else {
          store_output(now.at, w);
        }
        release(w);
      }
      o.advance();
      if (trouble) remember(now.tile);
    }
    ptx::tma_wait_written();  // what follows may store the same rows
    for (; num_redos > 0; --num_redos) {
      const int tile = last_redo;
      if (num_redos > 1) last_redo = p.redo_links[tile];
      for (bool moving = false; !again(tile, moving); moving = true) continue;
    }
    smem.work.post(mail, Work());
    ptx::tma_wait_written();
  }
  __device__ __forceinline__ Work read() { return smem.work.read_alone(mail); }

  __device__ __forceinline__ void remember(int tile) {
    if (num_redos > 0) p.redo_links[tile] = last_redo;
    last_redo = tile;
    ++num_redos;
  }
  // Has a tile computed again; false when references must move.
  __device__ __forceinline__ bool again(int tile, bool moving) {
    const Work work = work_of<kTile>(p, tile, moving);
    smem.work.post(mail, work);
    bool trouble = false;
    for (int w = 0; w < kTile.warpgroups; ++w) trouble |= wait(w);
    const bool good = moving || !trouble;
    for (int w = 0; w < kTile.warpgroups; ++w) {
      if (good) store_output(work.at, w);
      release(w);
    }
    o.advance();
    return good;
  }

  // Waits for a warpgroup's O; is there trouble in it?
  __device__ __forceinline__ bool wait(int w) {
    smem.o_full[o.stage()][w].wait(o.phase());
    volatile int* trouble = &smem.trouble[o.stage()][w];
    const bool found = *trouble != 0;
    *trouble = 0;
    return found;
  }
  __device__ __forceinline__ void store_output(const At& at, int w) {
    if constexpr (kTile.one_q()) return;  // the consumers have stored it
    if constexpr (kTile.general()) {
      if (!at.leaves_by_engine(p, 64 * w)) return;  // the consumers have stored it
    }
    store(smem.q[o.stage()][w], p.o_map, at.q_start + at.first_row + 64 * w, at.first_head,
          at.tensor_batch(p));
    ptx::tma_commit_group();
  }
  __device__ __forceinline__ void release(int w) {
    if constexpr (kTile.one_q()) return;
    ptx::tma_wait_read();
    smem.q_empty[o.stage()][w].arrive();
  }
};

}  // namespace tilewise::cuda::sm90
