// The consumers of the sm_90 backward: warpgroups of 64 keys, which compute dK, dV and dQ.
#pragma once

#include "cuda/common/gradients.cuh"
#include "cuda/common/nonfinite.cuh"
#include "cuda/common/scores.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/backward_nonfinite.cuh"
#include "cuda/sm90/backward_smem.cuh"
#include "cuda/tile/warpgroup.cuh"

namespace tilewise::cuda::sm90 {

// Every row of an accumulator becomes the columns' values times `factor`.
template <class Scores>
__device__ __forceinline__ void start_from(Scores& x, const float* columns, float factor) {
#pragma unroll
  for (int n = 0; n < Scores::kCols / 2; ++n) {
    const float2 pair = column_pair(columns, n);
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      x.at(r, 2 * n) = pair.x * factor;
      x.at(r, 2 * n + 1) = pair.y * factor;
    }
  }
}

template <DType kType, BackwardTile kTile>
struct BackwardConsumer {
  using Scores = WarpgroupAccumulator<kTile.block_m / 8>;  // S^T, dP^T: 64 keys
  using Pairs = WarpgroupOperand<kTile.block_m / 16>;      // P^T, dS^T
  using Gradient = WarpgroupAccumulator<kTile.head_dim / 8>;
  using QueryGradient = WarpgroupAccumulator<kTile.dq_columns() / 8>;
  using DsTile = typename BackwardSmem<kTile>::ScoreGradients;
  static constexpr int kConsumers = 1, kTurn = 2;  // named barriers
  static constexpr int kThreads = kTile.consumers();

  const TileBackwardParams& p;
  BackwardSmem<kTile>& smem;
  const int warpgroup = warpgroup_id() - 1;
  const int first_row = 64 * warpgroup;  // of this warpgroup's keys in the tile
  // Where this lane writes, in the first buffer of each ring. Computed once: a shuffle, which they
  // take, waits until products under way have read shared memory.
  const uint32_t ds_lane = lane_address(smem.ds[0], first_row);
  float4* const dq_lane = reinterpret_cast<float4*>(smem.out[warpgroup][0].dq) +
                          threadIdx.x % 128 / 32 * (QueryGradient::kCols / 2 * 32) +
                          threadIdx.x % 32;
  const float scale = p.scale * kLog2e, inverse_scale = 1.0f / scale;

  Gradient dk, dv;
  Ring<1> kv = {};
  Ring<kTile.stages> rows = {};  // of Q, dO and dS
  Ring<kTile.out_buffers> out = {};
  Ring<2> mail = {};

  __device__ __forceinline__ void run() {
    for (KeyWork now = read(); now.some(); now = read()) {
      dk.clear();
      dv.clear();
      if (const int steps = now.steps(p); steps > 0) take_steps(now, steps);
      const bool marks = kTile.banded() && taken_out();
      send(now, dv, 1.0f, p.do_, marks);
      send(now, dk, p.scale, p.q, marks);
      if (marks) mark_query_gradients<kType, kTile.head_dim>(p, place(now), marked(now), 0, 1);
    }
  }
  __device__ __forceinline__ KeyWork read() { return smem.work.read(mail); }

  __device__ __forceinline__ void take_steps(const KeyWork& now, int left) {
    smem.k_barriers.wait_full(kv);
    smem.v_barriers.wait_full(kv);
    wait_rows();
    int m_block = now.blocks.begin;
    for (; left > 0; --left) {
      if (is_edge(now, m_block)) {
        step<true>(now, m_block, left == 1);
      } else {
        step<false>(now, m_block, left == 1);
      }
      if (++m_block == now.blocks.end) m_block = now.blocks.begin;
    }
    kv.advance();
  }
  __device__ __forceinline__ SequencePlace place(const KeyWork& now) const {
    return sequence_of(p, now.batch);
  }
  // Is some key of the tile hidden from some row of that block, or one of them not there?
  __device__ __forceinline__ bool is_edge(const KeyWork& now, int m_block) const {
    return (now.n_block + 1) * kTile.block_n > p.seqlen_k ||
           (kTile.banded() ? !now.blocks.is_full(m_block)
                           : (m_block + 1) * kTile.block_m > p.seqlen_q);
  }

  template <bool kEdge>
  __device__ __forceinline__ void step(const KeyWork& now, int m_block, bool last) {
    const int stage = rows.stage();
    Scores s, ds;
    begin_scores(s, ds);
    ptx::wgmma_wait_group<1>();
    pin(s);
    bool suspicious = false;
    if constexpr (kEdge && kTile.banded()) suspicious = has_suspicious_rows(s);
    exponentiate(s);
    [[maybe_unused]] Visible<Scores> visible;
    if constexpr (kEdge) {
      visible = Visible<Scores>::template of<kTile.banded()>(
          p, place(now), now.n_block * kTile.block_n + first_row + warp_row(),
          m_block * kTile.block_m);
      visible.keep(s);
    }
    Pairs p_operand, ds_operand;
    if constexpr (kTile.pack_early) {
      pack<kType>(p_operand, s);
      compute_now(p_operand);
    } else {
      compute_now(s);
    }
    ptx::wgmma_wait_group<0>();
    pin(ds);
    if (last) smem.v_barriers.empty[0].arrive_as_warp();
    multiply(ds, s);
    if constexpr (kEdge) visible.keep(ds);
    smem.out_barriers[warpgroup].wait_empty(out);  // slower when products are under way
    if constexpr (!kTile.pack_early) pack<kType>(p_operand, s);
    pack<kType>(ds_operand, ds);
    store_operand<DsTile>(ds_lane + stage * sizeof(DsTile), ds_operand);
    bool bad = false;
    if constexpr (kEdge && kTile.banded()) bad = take_out_nonfinite(suspicious);
    finish_step(p_operand, ds_operand, last);
    if constexpr (kEdge && kTile.banded()) {
      if (bad && !last) put_back_keys(now);
    }
  }

  // S^T = K Q^T - lse / scale and dP^T = V dO^T - delta. Warpgroup 1 begins after the other one, so
  // that the products of one run beside what the other one computes.
  __device__ __forceinline__ void begin_scores(Scores& s, Scores& dp) {
    const int stage = rows.stage();
    start_from(s, smem.lse[stage], -inverse_scale);
    start_from(dp, smem.delta[stage], -1.0f);
    pin(s);
    pin(dp);
    if (warpgroup == 1) ptx::barrier_sync(kTurn, kThreads);
    begin_product<kType>(s, summed_columns(smem.k, first_row), summed_columns(smem.q[stage]), 1);
    ptx::wgmma_commit_group();
    begin_product<kType>(dp, summed_columns(smem.v, first_row), summed_columns(smem.do_[stage]), 1);
    ptx::wgmma_commit_group();
    if (warpgroup == 0) ptx::barrier_arrive(kTurn, kThreads);
  }
  __device__ __forceinline__ void exponentiate(Scores& s) const {
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
#pragma unroll
      for (int j = 0; j < Scores::kCols; ++j) s.at(r, j) = ptx::exp2(s.at(r, j) * scale);
    }
  }

  // dV += P^T dO, dK += dS^T Q and dQ = dS K, and what the step had in shared memory is free.
  __device__ __forceinline__ void finish_step(Pairs& p_operand, Pairs& ds_operand, bool last) {
    const int stage = rows.stage();
    begin_product<kType>(dv, p_operand, summed_rows(smem.do_[stage]), 1);
    ptx::wgmma_commit_group();
    ptx::fence_proxy_async();  // dS is there for the other warpgroup's products too
    smem.ds_full[stage].arrive_as_warp();
    QueryGradient dq;
    begin_product<kType>(dk, ds_operand, summed_rows(smem.q[stage]), 1);
    ptx::wgmma_commit_group();
    begin_dq(dq);
    ptx::wgmma_wait_group<1>();
    pin(dv);
    pin(p_operand);
    pin(dk);
    pin(ds_operand);
    smem.do_barriers.empty[stage].arrive();
    smem.q_barriers.empty[stage].arrive();
    wait_next_rows(last);
    ptx::wgmma_wait_group<0>();
    put(dq, last);
    rows.advance();
  }
  __device__ __forceinline__ void begin_dq(QueryGradient& dq) {
    smem.ds_full[rows.stage()].wait(rows.phase());
    constexpr bool kRows = kTile.splits_dq_rows();
    begin_product<kType>(dq, summed_rows(smem.ds[rows.stage()], kRows ? warpgroup : 0),
                         summed_rows(smem.k, kRows ? 0 : warpgroup), 0);
    ptx::wgmma_commit_group();
  }

  // dQ to the sender, into a buffer that is empty.
  __device__ __forceinline__ void put(QueryGradient& dq, bool last) {
    pin(dq);
    if (last) smem.k_barriers.empty[0].arrive_as_warp();
    constexpr int kAtoms = QueryGradient::kCols / 2;
    float4* const to = dq_lane + out.stage() * (sizeof(Outgoing<kTile>) / sizeof(float4));
#pragma unroll
    for (int n = 0; n < kAtoms; ++n) {
      const float(&x)[4] = dq.c[0][n];
      to[32 * n] = make_float4(x[0], x[1], x[2], x[3]);
    }
    pass_out();
  }
  // dV or dK of the tile. With marks: of what elements of `x`, dO or Q, show.
  __device__ __forceinline__ void send(const KeyWork& now, const Gradient& gradient, float factor,
                                       const TensorRef& x, bool marks) {
    smem.out_barriers[warpgroup].wait_empty(out);
    auto& to = smem.out[warpgroup][out.stage()].gradient;
    store_scaled<kType>(to, gradient, Rows<2>{factor, factor});
    if (marks) {
      __syncwarp();
      const int first = now.n_block * kTile.block_n + first_row;
      mark_key_gradients<kType>(p, place(now), marked(now), x, 0, 1, [&](int key, int i) {
        to.data[to.offset(key - first, i / 8) + i % 8] = 0x7fff;
      });
    }
    pass_out();
  }
  __device__ __forceinline__ void pass_out() {
    smem.out_barriers[warpgroup].full[out.stage()].arrive_as_warp();
    out.advance();
  }

  __device__ __forceinline__ void wait_rows() {
    smem.q_barriers.wait_full(rows);
    smem.do_barriers.wait_full(rows);
  }
  __device__ __forceinline__ void wait_next_rows(bool last) {
    if (last) return;
    Ring<kTile.stages> next = rows;
    next.advance();
    smem.q_barriers.wait_full(next);
    smem.do_barriers.wait_full(next);
  }

  // May an element of Q, dO or of this warp's keys not be finite? (common/nonfinite.cuh)
  __device__ __forceinline__ bool has_suspicious_rows(const Scores& s) const {
    const int stage = rows.stage();
    return has_nonfinite_row(s) || suspicious(smem.lse[stage], smem.delta[stage]);
  }
  // Those become 0 in shared memory; returns whether there were some.
  __device__ __forceinline__ bool take_out_nonfinite(bool suspicious) {
    if (uniform(ptx::barrier_or(kConsumers, kThreads, suspicious)) == 0) return false;
    const int stage = rows.stage(), thread = static_cast<int>(threadIdx.x) - 128;
    const bool mine = has_nonfinite<kType, kThreads>(smem.q[stage], thread) ||
                      has_nonfinite<kType, kThreads>(smem.do_[stage], thread) ||
                      has_nonfinite<kType, kThreads>(smem.k, thread);
    if (uniform(ptx::barrier_or(kConsumers, kThreads, mine)) == 0) return false;
    take_out<kType, kThreads>(smem.q[stage], thread);
    take_out<kType, kThreads>(smem.do_[stage], thread);
    take_out<kType, kThreads>(smem.k, thread);
    ptx::fence_proxy_async();
    ptx::barrier_sync(kConsumers, kThreads);
    volatile bool* const told = &smem.taken_out[warp_id() - 4];
    *told = true;  // by all lanes: by one, the loop would lose its uniform registers
    return true;
  }
  // Were some in this tile? Asked once, by a whole warp.
  __device__ __forceinline__ bool taken_out() {
    __syncwarp();
    volatile bool* const told = &smem.taken_out[warp_id() - 4];
    const bool taken = *told;
    __syncwarp();
    *told = false;
    return uniform(taken) != 0;
  }
  // This warp's keys.
  __device__ __forceinline__ MarkedKeys marked(const KeyWork& now) const {
    const int tile = now.n_block * kTile.block_n, first = tile + first_row + warp_row();
    return {now.kv_head,
            kTile.block_m,
            {first, min(first + 16, p.seqlen_k)},
            now.blocks,
            tile + kTile.block_n > p.seqlen_k};
  }
  // The next steps' scores need them as they were.
  __device__ __forceinline__ void put_back_keys(const KeyWork& now) {
    const int key = now.n_block * kTile.block_n;
    ptx::barrier_sync(kConsumers, kThreads);
    put_back<kThreads>(smem.k, p.k, place(now).key_row(p.k, key, now.kv_head), p.seqlen_k - key,
                       static_cast<int>(threadIdx.x) - 128);
    ptx::fence_proxy_async();
    ptx::barrier_sync(kConsumers, kThreads);
  }
};

}  // namespace tilewise::cuda::sm90
