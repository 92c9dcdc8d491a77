// The consumers of the sm_90 forward: warpgroups of 64 query rows, wgmma and softmax.
#pragma once

#include "cuda/common/reference_softmax.cuh"
#include "cuda/common/scores.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/forward_smem.cuh"
#include "cuda/tile/warpgroup.cuh"

namespace tilewise::cuda::sm90 {

template <DType kType, ForwardTile kTile>
struct Consumer {
  using Scores = WarpgroupAccumulator<kTile.block_n / 8>;
  using Output = WarpgroupAccumulator<kTile.head_dim / 8>;
  using Softmax = ReferenceSoftmax<kType, Scores::kRows>;
  using Work = sm90::Work<kTile>;
  using At = PlaceOf<kTile>;
  using Values = SwizzledTile<kTile.block_n, kTile.head_dim>;
  // Identifiers of named barriers: a turn for each warpgroup, then one for all consumers.
  static constexpr int kTurns = 1, kConsumers = kTurns + kTile.warpgroups;
  static constexpr bool kNarrow = kType == DType::kFp16;

  const TileForwardParams& p;
  ForwardSmem<kTile>& smem;
  const int warpgroup = warpgroup_id() - 1;
  const int first_row = 64 * warpgroup + warp_row();  // of this warp, in the tile
  const float scale = kTile.general() && !p.plain ? 1.0f : p.scale * kLog2e;  // of exponents

  Scores s;
  Output o;
  WarpgroupOperand<kTile.block_n / 16> weights;
  WarpgroupOperand<kTile.q_in_registers ? kTile.head_dim / 16 : 1> queries;
  Softmax softmax;
  Ring<kTile.q_buffers> q = {};
  Ring<kTile.stages> k = {}, v = {};
  Ring<2> mail = {};
  Ring<kTile.one_q() ? kTile.o_slots() : 1> slot = {};  // O's, where it is not that of its Q

  __device__ __forceinline__ void run() {
    Work now = read();
    if (kTile.general() && !now.some()) return;
    if (warpgroup == kTile.warpgroups - 1) pass_turn();  // the first one begins
    wait_queries(q);
    smem.k_barriers.wait_full(k);
    take_turn();
    begin_scores(q);
    pass_turn();
    ptx::wgmma_wait_group<0>();
    release_keys();
    release_queries(now.kv.end - 1, now.kv);
    first_weights(now.at, now.kv);
    int old = 0;
    while (true) {
      pack<kType>(weights, s);
      old = other_steps(now.at, now.kv);
      const At done_at = now.at;
      now = read();
      if (!now.some()) return last_tile(done_at, old);
      Softmax done = softmax;
      if constexpr (kTile.one_q()) {
        next_tile_with_one_q(now.at, now.kv, old, done_at, done);
      } else {
        q.advance();
        next_tile(now.at, now.kv, old);
        finish(done_at, done, q.before());
      }
    }
  }
  // fp16 weights end at 65504: where rows see only some keys of the first steps, one more step is
  // an edge, so that their references are the highest of a whole step's keys.
  __device__ __forceinline__ Work read() {
    Work now = smem.work.read(mail);
    now.at.n_q = num_queries(now.at);
    if constexpr (!kTile.general()) now.at.n_k = p.seqlen_k;
    Steps& kv = now.kv;
    if constexpr (!kTile.banded()) kv = steps_of<kTile>(p, now.at);
    if constexpr (!kTile.has_left_end()) kv.begin = kv.full_begin = 0;
    if (kNarrow && kv.full_begin < kv.full_end && kv.full_end < kv.end) --kv.full_end;
    return now;
  }

  // What all tiles have in common needs no registers.
  __device__ __forceinline__ int num_queries(const At& at) const {
    return kTile.general() ? at.n_q : p.seqlen_q;
  }

  // S = Q K^T of the tile's last keys, and O of the tile before while that runs.
  __device__ __forceinline__ void next_tile(const At& at, const Steps& kv, int old) {
    wait_queries(q);
    smem.k_barriers.wait_full(k);
    take_turn();
    begin_scores(q);
    smem.v_barriers.wait_full(v);
    begin_output(old);
    pass_turn();
    ptx::wgmma_wait_group<1>();
    release_keys();
    first_weights(at, kv);
    pin(s);
    ptx::wgmma_wait_group<0>();
    release_values();
  }
  // The same, but O of the tile before begins first: Q is on its way meanwhile.
  __device__ __forceinline__ void next_tile_with_one_q(const At& at, const Steps& kv, int old,
                                                       const At& done_at, Softmax& done) {
    smem.v_barriers.wait_full(v);
    take_turn();
    begin_output(old);
    pass_turn();
    wait_queries(q);
    smem.k_barriers.wait_full(k);
    take_turn();
    begin_scores(q);
    pass_turn();
    ptx::wgmma_wait_group<1>();
    release_values();
    finish(done_at, done, o_ring());
    o_ring().advance();
    ptx::wgmma_wait_group<0>();
    release_keys();
    release_queries(kv.end - 1, kv);
    first_weights(at, kv);
  }
  __device__ __forceinline__ void last_tile(const At& at, int old) {
    smem.v_barriers.wait_full(v);
    take_turn();
    begin_output(old);
    pass_turn();
    ptx::wgmma_wait_group<0>();
    release_values();
    finish(at, softmax, o_ring());
    o_ring().advance();
  }

  // The first step's scores become weights, and its maxima the references.
  __device__ __forceinline__ void first_weights(const At& at, const Steps& kv) {
    const int n_block = kv.end - 1;
    transform(at, n_block);
    if (!kv.is_full(n_block)) hide(at, n_block);
    softmax.start(highest_exponents(s, scale));
    softmax.exponentiate(s, scale);
  }

  // All steps but the first: the edge on the right, the full tiles, the edge on the left. Returns
  // whether O holds something.
  __device__ __forceinline__ int other_steps(const At& at, const Steps& kv) {
    int n_block = kv.end - 2, old = 0;
    for (; (kTile.banded() || kNarrow) && n_block >= kv.full_end; --n_block, old = 1)
      step<true>(at, kv, n_block, old);
    if (n_block >= kv.full_begin) softmax.give_up_without_reference(~0u);
    for (; n_block >= kv.full_begin; --n_block, old = 1) step<false>(at, kv, n_block, old);
    for (; kTile.has_left_end() && n_block >= kv.begin; --n_block, old = 1)
      step<true>(at, kv, n_block, old);
    return old;
  }

  // S = Q K^T of a step and O += P V of the step before it, together; then P of the step.
  template <bool kEdge>
  __device__ __forceinline__ void step(const At& at, const Steps& kv, int n_block, int old) {
    smem.k_barriers.wait_full(k);
    take_turn();
    begin_scores(q);
    smem.v_barriers.wait_full(v);
    begin_output(old);
    pass_turn();
    ptx::wgmma_wait_group<1>();
    release_keys();
    release_queries(n_block, kv);
    transform(at, n_block);
    Rows<Scores::kRows> factor;
    if constexpr (kEdge) {
      hide(at, n_block);
      factor = softmax.move(highest_exponents(s, scale));
    }
    if constexpr (kTile.output_first) wait_output();
    softmax.exponentiate(s, scale);
    if constexpr (!kTile.output_first) {
      compute_now(softmax.sum.x[0] + softmax.sum.x[1]);
      wait_output();
    }
    if constexpr (kEdge) rescale(o, factor);
    pack<kType>(weights, s);
  }

  __device__ __forceinline__ void wait_queries(const Ring<kTile.q_buffers>& at) {
    smem.q_full[at.stage()][warpgroup].wait(at.phase());
    if constexpr (kTile.q_in_registers) load_operand(queries, smem.q[at.stage()][warpgroup]);
  }
  __device__ __forceinline__ void begin_scores(const Ring<kTile.q_buffers>& at) {
    if constexpr (kTile.q_in_registers) {
      begin_product<kType>(s, queries, summed_columns(smem.k[k.stage()]), 0);
    } else {
      begin_product<kType>(s, summed_columns(smem.q[at.stage()][warpgroup]),
                           summed_columns(smem.k[k.stage()]), 0);
    }
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void begin_output(int old) {
    begin_product<kType>(o, weights, summed_rows(smem.v[v.stage()]), old);
    ptx::wgmma_commit_group();
  }
  // After the wait for them.
  __device__ __forceinline__ void release_keys() {
    pin(s);
    smem.k_barriers.empty[k.stage()].arrive_as_warp();
    k.advance();
  }
  __device__ __forceinline__ auto& o_ring() {
    if constexpr (kTile.one_q()) {
      return slot;
    } else {
      return q;
    }
  }
  // One Q alone, after the tile's last scores: the next one may come.
  __device__ __forceinline__ void release_queries(int n_block, const Steps& kv) {
    if constexpr (kTile.one_q()) {
      if (n_block > kv.begin) return;
      smem.q_empty[0][warpgroup].arrive_as_warp();
      q.advance();
    }
  }
  __device__ __forceinline__ void release_values() {
    pin(o);
    pin(weights);
    smem.v_barriers.empty[v.stage()].arrive_as_warp();
    v.advance();
  }
  __device__ __forceinline__ void wait_output() {
    ptx::wgmma_wait_group<0>();
    release_values();
  }

  // Warpgroups begin products in turns: while one's run, another one's exponentials do.
  __device__ __forceinline__ void take_turn() {
    if constexpr (kTile.warpgroups > 1) ptx::barrier_sync(kTurns + warpgroup, 256);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (kTile.warpgroups > 1) {
      const int next = warpgroup + 1 == kTile.warpgroups ? 0 : warpgroup + 1;
      ptx::barrier_arrive(kTurns + next, 256);
    }
  }

  // Scores become exponents where a scale is not all: softcap, ALiBi.
  __device__ __forceinline__ void transform(const At& at, int n_block) {
    if constexpr (kTile.general()) {
      transform_scores(s, p, at, first_row, n_block * kTile.block_n);
    }
  }
  __device__ __forceinline__ void hide(const At& at, int n_block) {
    hide_keys<kTile.banded()>(s, p, at, first_row, n_block * kTile.block_n);
  }

  // O on its way, unless the storer finds trouble; the lse.
  template <class Slot>
  __device__ __forceinline__ void finish(const At& at, Softmax& done, const Slot& buffer) {
    done.join_lanes();
    tell(in_trouble(at, done), buffer);
    send(at, done, buffer);
  }
  // Rows, a bit each, whose O this lane finds wrong.
  __device__ __forceinline__ uint32_t in_trouble(const At& at, const Softmax& done) const {
    uint32_t rows = done.out_of_range();
#pragma unroll
    for (int r = 0; r < Output::kRows; ++r) {
      float zero = 0.0f;  // 0 * x is 0 for a finite x only
#pragma unroll
      for (int j = 0; j < Output::kCols; ++j) zero = fmaf(o.at(r, j), 0.0f, zero);
      if (zero != 0.0f) rows |= 1u << r;
      if (at.query(p, first_row + Output::row(r)) >= num_queries(at)) rows &= ~(1u << r);
    }
    return rows;
  }
  template <class Slot>
  __device__ __forceinline__ void tell(uint32_t rows, const Slot& buffer) {
    if (!__any_sync(0xffffffffu, rows != 0) || lane_id() != 0) return;
    atomicOr(&smem.trouble[buffer.stage()][warpgroup], 1);
  }
  template <class Slot>
  __device__ __forceinline__ void send(const At& at, const Softmax& done, const Slot& buffer) {
    Rows<Scores::kRows> lse;
    const Rows<Scores::kRows> factor = done.finalize(&lse);
    if constexpr (kTile.general()) {
      if (lane_id() % 4 == 0) store_lse(at, lse);
      store_rows(at, factor, smem.q[buffer.stage()][warpgroup]);
    } else {
      if (p.lse != nullptr && lane_id() % 4 == 0) store_lse(at, lse);
    }
    if constexpr (kTile.one_q()) {
      store_rows_directly(at, factor);
    } else if constexpr (!kTile.general()) {
      store_scaled<kType>(smem.q[buffer.stage()][warpgroup], o, factor);
    }
    ptx::fence_proxy_async();
    smem.o_full[buffer.stage()][warpgroup].arrive_as_warp();
  }
  __device__ __forceinline__ void store_lse(const TilePlace& at,
                                            const Rows<Scores::kRows>& lse) const {
    float* const to = p.lse + at.flat_head * p.lse_head;
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      const int query = at.query(p, first_row + Scores::row(r));
      if (query < p.seqlen_q) to[query] = lse.x[r];
    }
  }
  __device__ __forceinline__ void store_lse(const SequenceTile& at,
                                            const Rows<Scores::kRows>& lse) const {
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      const int row = first_row + Scores::row(r);
      if (row < at.rows) at.store_lse(p, row, lse.x[r]);
    }
  }
  // O's rows from registers. The quad that has a row exchanges, so that each lane has 16 bytes.
  __device__ __forceinline__ void store_rows_directly(const At& at,
                                                      const Rows<Scores::kRows>& factor) const {
    static_assert(Output::kCols % 8 == 0);
#pragma unroll
    for (int r = 0; r < Output::kRows; ++r) {
      const int query = at.query(p, first_row + Output::row(r));
      uint16_t* const to =
          p.o.data + at.batch * p.o.batch + query * p.o.seqlen + at.first_head * p.o.head;
#pragma unroll
      for (int j = 0; j < Output::kCols; j += 8) {
        const auto pair = [&](int i) {
          return ptx::pack<kType>(o.at(r, i) * factor.x[r], o.at(r, i + 1) * factor.x[r]);
        };
        const uint4 chunk = quad_transposed({pair(j), pair(j + 2), pair(j + 4), pair(j + 6)});
        const int col = (j / 2 + lane_id() % 4) * 8;
        if (query < p.seqlen_q && col < p.o.dim) *reinterpret_cast<uint4*>(to + col) = chunk;
      }
    }
  }
  // To shared memory, and to where the copy engine does not bring them. Each warp has its own rows.
  __device__ __forceinline__ void store_rows(const At& at, const Rows<Scores::kRows>& factor,
                                             SwizzledTile<64, kTile.head_dim>& tile) const {
    constexpr int kChunks = kTile.head_dim / 8;
    if (p.num_splits > 1) return store_partial(at, factor);
    store_scaled<kType>(tile, o, factor);
    if (at.leaves_by_engine(p, 64 * warpgroup)) return;
    const int first = warp_row();  // a shuffle: not where lanes part
    __syncwarp();
#pragma unroll 1
    for (int i = lane_id(); i < 16 * kChunks; i += 32) {
      const int row = i / kChunks, chunk = i % kChunks;
      if (first_row + row >= at.rows || 8 * chunk >= p.o.dim) continue;
      *reinterpret_cast<uint4*>(at.o_row(p, first_row + row) + 8 * chunk) =
          *reinterpret_cast<const uint4*>(tile.data + tile.offset(first + row, chunk));
    }
  }
  __device__ __forceinline__ void store_partial(const At& at,
                                                const Rows<Scores::kRows>& factor) const {
#pragma unroll
    for (int r = 0; r < Output::kRows; ++r) {
      const int row = first_row + Output::row(r);
      if (row >= at.rows) continue;
      float* const to = at.partial_row(p, row);
#pragma unroll
      for (int j = 0; j < Output::kCols; j += 2) {
        if (Output::col(j) >= p.o.dim) continue;
        *reinterpret_cast<float2*>(to + Output::col(j)) = {o.at(r, j) * factor.x[r],
                                                           o.at(r, j + 1) * factor.x[r]};
      }
    }
  }
};

}  // namespace tilewise::cuda::sm90
