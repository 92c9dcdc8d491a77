// The roles of the sm_90 backward that move data: one thread loads and takes tiles, a warp for each
// warpgroup of consumers sends gradients out.
#pragma once

#include "cuda/common/dq_sum.cuh"
#include "cuda/ptx/red.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/sm90/backward_smem.cuh"
#include "cuda/sm90/tensor_copy.cuh"

namespace tilewise::cuda::sm90 {

template <BackwardTile kTile>
struct BackwardProducer {
  // A tile is taken so many steps before the end of the one before: earlier, and a thread block may
  // hold a long one back while others run out of work; later, and it would be waited for.
  static constexpr int kTakeAhead = 2;

  const TileBackwardParams& p;
  BackwardSmem<kTile>& smem;
  Ring<1> kv = {};
  Ring<kTile.stages> rows = {};
  Ring<2> mail = {};

  __device__ __forceinline__ void run() {
    ptx::prefetch_tensor_map(&p.q_map);
    ptx::prefetch_tensor_map(&p.do_map);
    ptx::prefetch_tensor_map(&p.k_map);
    ptx::prefetch_tensor_map(&p.v_map);
    // Deterministic: tiles wait for those before them, so they are taken in the order in which
    // thread blocks begin.
    int tile = p.dq_turn != nullptr ? take(0) : static_cast<int>(blockIdx.x);
    while (tile != KeyWork::kNoTile) {
      const KeyWork work = work_of<kTile>(p, tile);
      smem.work.post(mail, work);
      const int steps = work.steps(p), take_at = max(0, steps - 1 - kTakeAhead);
      if (steps == 0) tile = take_next();
      int head = work.kv_head * p.group, m_block = work.blocks.begin;
      for (int step = 0; step < steps; ++step) {
        load_rows(work, head, m_block, step == 0);
        if (step == take_at) tile = take_next();
        if (++m_block == work.blocks.end) {
          m_block = work.blocks.begin;
          ++head;
        }
      }
    }
    smem.work.post(mail, KeyWork());
  }
  __device__ __forceinline__ int take(int before) {
    const int tile = before + atomicAdd(p.ticket, 1);
    return tile < p.num_tiles ? tile : KeyWork::kNoTile;
  }
  __device__ __forceinline__ int take_next() {
    return take(p.dq_turn != nullptr ? 0 : static_cast<int>(gridDim.x));
  }

  // A step's rows, and K and V before or between the first one's.
  __device__ __forceinline__ void load_rows(const KeyWork& work, int head, int m_block,
                                            bool with_keys) {
    const int row = m_block * kTile.block_m, stage = rows.stage();
    const int64_t padded = sequence_of(p, work.batch).padded_row(head, row);
    // Rows of the workspace end with a block of 64.
    const int bytes = 4 * min(kTile.block_m, (p.seqlen_q - row + 63) / 64 * 64);
    smem.q_barriers.wait_empty(rows);
    load(smem.q[stage], p.q_map, row, head, work.batch, smem.q_barriers.full[stage], bytes);
    ptx::bulk_load(smem_address(smem.lse[stage]), p.row_lse + padded, bytes,
                   smem.q_barriers.full[stage].address());
    if (with_keys) load_keys(work, smem.k, p.k_map, smem.k_barriers);
    smem.do_barriers.wait_empty(rows);
    load(smem.do_[stage], p.do_map, row, head, work.batch, smem.do_barriers.full[stage], bytes);
    ptx::bulk_load(smem_address(smem.delta[stage]), p.delta + padded, bytes,
                   smem.do_barriers.full[stage].address());
    if (with_keys) {
      load_keys(work, smem.v, p.v_map, smem.v_barriers);
      kv.advance();
    }
    rows.advance();
  }
  __device__ __forceinline__ void load_keys(const KeyWork& work,
                                            typename BackwardSmem<kTile>::Keys& to,
                                            const TensorMap& map, StageBarriers<1>& barriers) {
    barriers.wait_empty(kv);
    load(to, map, work.n_block * kTile.block_n, work.kv_head, work.batch, barriers.full[0]);
  }
};

// Sends out what a warpgroup puts into its buffers: dQ of each step, dV and dK of each tile.
template <BackwardTile kTile>
struct GradientSender {
  static constexpr int kHalf = kTile.splits_dq_rows() ? 64 : 0;  // first row of warpgroup 1's dQ
  // A block of 64 rows of the sums gets this many additions from a tile.
  static constexpr int kParts = kTile.splits_dq_rows() ? 1 : kTile.warpgroups;

  const TileBackwardParams& p;
  BackwardSmem<kTile>& smem;
  const int warpgroup;
  const bool leader = ptx::elect_one();  // asks for all copies
  Ring<kTile.out_buffers> out = {};
  Ring<2> mail = {};

  __device__ __forceinline__ void run() {
    for (KeyWork now = read(); now.some(); now = read()) {
      int head = now.kv_head * p.group, m_block = now.blocks.begin;
      for (int step = now.steps(p); step > 0; --step) {
        add_query_gradient(now, head, m_block);
        if (++m_block == now.blocks.end) {
          m_block = now.blocks.begin;
          ++head;
        }
      }
      store_gradient(now, p.dv_map);
      store_gradient(now, p.dk_map);
    }
    if (leader) ptx::tma_wait_written();
  }
  __device__ __forceinline__ KeyWork read() { return smem.work.read(mail); }

  __device__ __forceinline__ void add_query_gradient(const KeyWork& work, int head, int m_block) {
    const int row = m_block * kTile.block_m + kHalf * warpgroup;
    wait_full();
    if (leader && row < p.seqlen_q) {
      const int64_t padded = sequence_of(p, work.batch).padded_row(head, row);
      int32_t* const turn = p.dq_turn == nullptr ? nullptr : p.dq_turn + padded / 64;
      if (turn != nullptr) wait_for_turn(turn, work.n_block, m_block);
      add_to(p.dq_sum + padded * kTile.head_dim);
      ptx::tma_commit_group();
      ptx::tma_wait_read();
      if (turn != nullptr) {
        ptx::tma_wait_written();
        ptx::fence_proxy_async_global();
        ptx::red_add_release(turn, 1);
      }
    }
    release();
  }
  __device__ __forceinline__ void add_to(float* sums) {
    constexpr int kRuns = kTile.splits_dq_rows() ? 1 : 4;  // a warp has neighbouring atoms
    constexpr int kFloats = 64 * kTile.dq_columns() / kRuns;
    const uint32_t from = smem_address(smem.out[warpgroup][out.stage()].dq);
    if (kRuns > 1) sums += atom_offset<kTile.head_dim>(0, kTile.dq_columns() / 8) * warpgroup;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      ptx::bulk_add(sums + atom_offset<kTile.head_dim>(i, 0), from + 4 * kFloats * i, 4 * kFloats);
    }
  }
  // Deterministic: key blocks add from the last that the rows see to the first.
  __device__ __forceinline__ void wait_for_turn(const int32_t* turn, int n_block, int m_block) {
    const int row = m_block * kTile.block_m;
    const BasicTileRange<int> kv =
        (kTile.banded() ? p.mask : MaskSpec{})
            .kv_range(row, row + kTile.block_m, sequence_of(p, 0).lengths(), kTile.block_n);
    while (ptx::load_acquire(turn) < kParts * (kv.end - 1 - n_block)) __nanosleep(20);
    ptx::fence_proxy_async_global();
  }

  __device__ __forceinline__ void store_gradient(const KeyWork& work, const TensorMap& map) {
    wait_full();
    if (leader) {
      store(smem.out[warpgroup][out.stage()].gradient, map,
            work.n_block * kTile.block_n + 64 * warpgroup, work.kv_head, work.batch);
      ptx::tma_commit_group();
      ptx::tma_wait_read();
    }
    release();
  }
  // The consumers have written the buffer, and the copy engine may read it.
  __device__ __forceinline__ void wait_full() {
    smem.out_barriers[warpgroup].wait_full(out);
    ptx::fence_proxy_async();
  }
  __device__ __forceinline__ void release() {
    smem.out_barriers[warpgroup].empty[out.stage()].arrive_as_warp();
    out.advance();
  }
};

}  // namespace tilewise::cuda::sm90
