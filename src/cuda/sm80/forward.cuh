// The FlashAttention-2 forward (arXiv 2307.08691, algorithm 1) on mma.sync.
//
// One thread block computes one block of query rows. The paper's three changes are what to look
// for: O is divided by the row sums once, at the end; blocks of query rows run in parallel; and
// each warp has query rows of its own (split-Q), so that warps never exchange scores.
#pragma once

#include "cuda/common/place.cuh"
#include "cuda/common/scores.cuh"
#include "cuda/params.h"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/fragment.cuh"
#include "cuda/tile/rows.cuh"
#include "cuda/tile_config.h"

namespace tilewise::cuda::sm80 {

template <TileConfig kTile>
struct ForwardSmem {
  SmemTile<kTile.block_m, kTile.head_dim> q;  // O on its way out
  SmemTile<kTile.block_n, kTile.head_dim> k[kTile.stages], v[kTile.stages];
};

template <DType kType, TileConfig kTile>
struct Forward {
  static constexpr int kRowAtoms = kTile.block_m / kTile.warps / 16;
  static constexpr int kThreads = kTile.threads();
  using Scores = Accumulator<kRowAtoms, kTile.block_n / 8>;
  using Output = Accumulator<kRowAtoms, kTile.head_dim / 8>;
  using Ops = RowOps<Scores::kRows>;
  // A row's reference follows its maximum only from so far (base 2): weights are 2^8 at most, and
  // most steps rescale nothing.
  static constexpr float kReferenceSlack = 8.0f;

  const ForwardParams& p;
  ForwardSmem<kTile>& smem;
  const Place at;
  const int first_row = warp_id() * 16 * kRowAtoms;  // of this warp, in the block

  const uint16_t* const k_head = at.k_row(p, 0);
  const uint16_t* const v_head = at.v_row(p, 0);
  Output o;
  RowSoftmax<Scores::kRows> softmax;
  bool hidden_values = false;

  __device__ __forceinline__ void run() {
    const Steps kv = at.steps(p, kTile.block_n);
    if (kv.end > kv.begin) {
      load_queries();
      load_keys<false>(kv.end - 1);
    }
    o.clear();
    // From the last keys to the first: the edge on the right, the full tiles, the edge on the left.
    int n_block = kv.end - 1;
    for (int edge_end = kv.full_end; n_block >= kv.begin; edge_end = kv.begin) {
      for (; n_block >= edge_end; --n_block) step<true>(n_block, kv.begin);
      for (; n_block >= kv.full_begin; --n_block) step<false>(n_block, kv.begin);
    }
    store();
    if constexpr (kTile.banded()) {
      if (hidden_values) mark(p, at, kv);
    }
  }

  // One step: S = Q K^T, P = softmax weights, O = O * factor + P V. The next step's loads run
  // beside it.
  template <bool kEdge>
  __device__ __forceinline__ void step(int n_block, int begin) {
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // K and V are there, and nobody reads the next ones' place any more
    if (n_block > begin) load_keys<true>(n_block - 1);  // whole: only the last step lacks keys
    const int stage = n_block % kTile.stages, key = n_block * kTile.block_n;
    auto& v = smem.v[stage];
    if constexpr (kEdge && kTile.banded()) {
      hidden_values |= hide_values<kType, kThreads>(v);
      if (!at.sees(p, first_row, 16 * kRowAtoms, key, kTile.block_n)) return;  // the whole warp
    }
    Scores s;
    multiply_transposed<kType>(s, smem.q, first_row, smem.k[stage]);
    Exponents exponents = {p.scale * kLog2e};
    if constexpr (kTile.general()) exponents = transform_scores(s, p, at, first_row, key);
    if constexpr (kEdge) hide_keys<kTile.banded()>(s, p, at, first_row, key);
    const auto highest = Ops::quad_max(row_max(s, exponents));
    rescale(o, softmax.update(Ops::beyond(highest, softmax.reference, kReferenceSlack)));
    exponentiate(s, exponents, softmax);
    accumulate<kType>(o, s, v);
  }

  __device__ __forceinline__ void load_queries() {
    const auto row = [&](int r) { return at.q_row(p, r); };
    if (kTile.general() && !p.q.vectors) {
      load_rows<false, kThreads>(smem.q, row, at.rows, p.q.dim);
    } else if (p.pack > 1) {  // rows of packed heads lie at no common stride
      load_rows<true, kThreads>(smem.q, row, at.rows, p.q.dim);
    } else {
      load_tile<kThreads, false>(smem.q, row(0), p.q.seqlen, at.rows, p.q.dim);
    }
  }

  // Issues the loads of a step.
  template <bool kAllRows>
  __device__ __forceinline__ void load_keys(int n_block) {
    const int stage = n_block % kTile.stages, key = n_block * kTile.block_n;
    load<kAllRows>(smem.k[stage], p.k, k_head, key);
    load<kAllRows>(smem.v[stage], p.v, v_head, key);
    ptx::cp_async_commit_group();
  }
  template <bool kAllRows>
  __device__ __forceinline__ void load(SmemTile<kTile.block_n, kTile.head_dim>& tile,
                                       const TensorRef& x, const uint16_t* head, int key) {
    const int rows = min(at.n_k - key, kTile.block_n);
    const uint16_t* first = head + key * x.seqlen;
    if (kTile.general() && !x.vectors) {
      load_rows<false, kThreads>(
          tile, [&](int r) { return first + r * x.seqlen; }, rows, x.dim);
    } else {
      load_tile<kThreads, kAllRows>(tile, first, x.seqlen, rows, x.dim);
    }
  }

  __device__ __forceinline__ void store() {
    softmax.sum = Ops::quad_sum(softmax.sum);
    Rows<Scores::kRows> lse;
    rescale(o, softmax.finalize(&lse));
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      const int row = first_row + Scores::row(r);
      if (lane_id() % 4 == 0 && row < at.rows) at.store_lse(p, row, lse.x[r]);
    }
    if (p.num_splits > 1) return store_partial();
      // By way of the rows of q that only this warp has read, so that rows leave in whole chunks.
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
#pragma unroll
      for (int j = 0; j < Output::kCols; j += 2) {
        const int row = first_row + Output::row(r), x = Output::col(j);
        *reinterpret_cast<uint32_t*>(smem.q.data + smem.q.offset(row, x / 8) + x % 8) =
            ptx::pack<kType>(o.at(r, j), o.at(r, j + 1));
      }
    }
    __syncwarp();
    const int end = min(first_row + 16 * kRowAtoms, at.rows);
    uint16_t* const first = at.o_row(p, 0);
    const auto row = [&](int r) { return p.pack == 1 ? first + r * p.o.seqlen : at.o_row(p, r); };
    store_rows(smem.q, row, first_row, end, p.o.dim, p.o.vectors);
  }

  __device__ __noinline__ static void mark(const ForwardParams& p, Place at, Steps kv) {
    __syncthreads();
    mark_outputs<kType, kThreads>(p, at, kv.begin * kTile.block_n, kv.end * kTile.block_n,
                                  [&](int row, int x) {
                                    if (p.num_splits > 1) {
                                      at.partial_row(p, row)[x] = __builtin_nanf("");
                                    } else {
                                      at.o_row(p, row)[x] = 0x7fff;  // a NaN of both types
                                    }
                                  });
  }

  __device__ __forceinline__ void store_partial() {
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      const int row = first_row + Output::row(r);
      if (row >= at.rows) continue;
      float* to = at.partial_row(p, row);
#pragma unroll
      for (int j = 0; j < Output::kCols; ++j) {
        if (Output::col(j) < p.o.dim) to[Output::col(j)] = o.at(r, j);
      }
    }
  }
};

template <DType kType, int kHeadDim, Variant kVariant>
__global__ void __launch_bounds__(forward_tile_sm80(kHeadDim, kVariant).threads(),
                                  forward_tile_sm80(kHeadDim, kVariant).blocks_per_sm)
    forward(const __grid_constant__ ForwardParams p) {
  constexpr TileConfig kTile = forward_tile_sm80(kHeadDim, kVariant);
  extern __shared__ uint4 shared[];
  const Place at = Place::of_block(p, kTile.block_m, kTile.banded());
  if (at.rows <= 0) return;
  Forward<kType, kTile>{p, *reinterpret_cast<ForwardSmem<kTile>*>(shared), at}.run();
}

}  // namespace tilewise::cuda::sm80
