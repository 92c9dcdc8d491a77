// Tiles in trouble, computed again by the consumers of the sm_90 forward: one product after the
// other. Almost never any.
#pragma once

#include "cuda/sm90/forward_consumer.cuh"

namespace tilewise::cuda::sm90 {

// Values that are not finite are hidden here: a row that does not see their keys gets the bits that
// finite values there would give it, because 0 * inf, which is NaN, does not reach it.
template <DType kType, ForwardTile kTile>
struct Recomputer {
  using Me = Consumer<kType, kTile>;
  using Work = typename Me::Work;
  using At = typename Me::At;
  using Output = typename Me::Output;
  using Values = SwizzledTile<kTile.block_n, kTile.head_dim>;
  // Elements of O that must show a value that is not finite: of a row, a bit a column of the lane.
  using Marks = uint64_t[Output::kRows];
  static_assert(Output::kCols <= 64);

  Me& my;
  uint32_t rows = 0;  // in trouble after the redo before, a bit each

  __device__ __forceinline__ void run() {
    for (Work work = my.read(); work.some(); work = my.read()) compute(work);
  }

  __device__ __forceinline__ void compute(const Work& work) {
    const At& at = work.at;
    const Steps& kv = work.kv;
    const uint32_t moving = work.moving != 0 ? rows : 0;
    Marks marks = {};
    my.wait_queries(my.q);
    my.o.clear();
    for (int n_block = kv.end - 1; n_block >= kv.begin; --n_block) {
      my.smem.k_barriers.wait_full(my.k);
      my.begin_scores(my.q);
      ptx::wgmma_wait_group<0>();
      my.release_keys();
      my.release_queries(n_block, kv);
      if (n_block == kv.end - 1) {
        my.first_weights(at, kv);
      } else {
        weights(at, n_block, kv.is_full(n_block), moving);
      }
      pack<kType>(my.weights, my.s);
      my.smem.v_barriers.wait_full(my.v);
      hide_values(my.smem.v[my.v.stage()], at, n_block * kTile.block_n, marks);
      my.begin_output(1);
      my.wait_output();
    }
    my.softmax.join_lanes();
    rows = my.in_trouble(at, my.softmax);
    rows |= __shfl_xor_sync(0xffffffffu, rows, 1);
    rows |= __shfl_xor_sync(0xffffffffu, rows, 2);
    my.tell(rows, my.o_ring());
    show(marks);
    my.send(at, my.softmax, my.o_ring());
    my.o_ring().advance();
  }

  // As in Consumer::step, but references of `moving` rows move in full steps too.
  __device__ __forceinline__ void weights(const At& at, int n_block, bool full, uint32_t moving) {
    my.transform(at, n_block);
    if (!full) my.hide(at, n_block);
    if (full) my.softmax.give_up_without_reference(~moving);
    if (!full || __any_sync(0xffffffffu, moving != 0)) {  // lanes of a row ask each other
      Rows<Output::kRows> highest = highest_exponents(my.s, my.scale);
#pragma unroll
      for (int r = 0; r < Output::kRows; ++r) {
        if (full && (moving >> r & 1) == 0) highest.x[r] = -__builtin_inff();
      }
      rescale(my.o, my.softmax.move(highest));
    }
    my.softmax.exponentiate(my.s, my.scale);
  }

  // Values of the step that are not finite become 0, and rows that see them are marked. All
  // consumers together.
  __device__ __forceinline__ void hide_values(Values& tile, const At& at, int key, Marks& marks) {
    constexpr int kThreads = kTile.consumers(), kPairs = Values::kBytes / 4;
    const int first = static_cast<int>(threadIdx.x) - 128;
    uint32_t* pairs = reinterpret_cast<uint32_t*>(tile.data);
    uint32_t any = 0;
#pragma unroll 8
    for (int i = first; i < kPairs; i += kThreads) any |= not_finite<kType>(pairs[i]);
    if (!ptx::barrier_or(Me::kConsumers, kThreads, any != 0)) return;
#pragma unroll 1
    for (int i = 0; i < min(kTile.block_n, at.n_k - key); ++i) mark(tile, at, i, key + i, marks);
    ptx::barrier_sync(Me::kConsumers, kThreads);
    for (int i = first; i < kPairs; i += kThreads) {
      const uint32_t bad = not_finite<kType>(pairs[i]) >> 15;  // 1 in each such half
      pairs[i] &= ~(bad * 0xffffu);
    }
    ptx::fence_proxy_async();
    ptx::barrier_sync(Me::kConsumers, kThreads);
  }
  __device__ __forceinline__ void mark(const Values& tile, const At& at, int i, int key,
                                       Marks& marks) {
    uint64_t bad = 0;
#pragma unroll 1
    for (int n = 0; n < Output::kCols / 2; ++n) {
      const uint32_t signs = not_finite<kType>(tile.pair(i, n, lane_id() % 4));
      bad |= uint64_t{signs >> 15 & 1 | signs >> 30 & 2} << 2 * n;
    }
#pragma unroll
    for (int r = 0; r < Output::kRows; ++r) {
      const int query = at.query(my.p, my.first_row + Output::row(r));
      if (my.p.mask.visible(query, key, at.lengths())) marks[r] |= bad;
    }
  }
  __device__ __forceinline__ void show(const Marks& marks) {
#pragma unroll
    for (int r = 0; r < Output::kRows; ++r) {
#pragma unroll
      for (int j = 0; j < Output::kCols; ++j) {
        if (marks[r] >> j & 1) my.o.at(r, j) = __builtin_nanf("");
      }
    }
  }
};

}  // namespace tilewise::cuda::sm90
