// The FlashAttention-2 forward (arXiv 2307.08691, algorithm 1) on mma.sync.
//
// One thread block computes one block of query rows. The paper's three changes are what to look
// for: O is divided by the row sums once, at the end; blocks of query rows run in parallel; and
// each warp has query rows of its own (split-Q), so that warps never exchange scores.
#pragma once

#include "cuda/common/place.cuh"
#include "cuda/common/scores.cuh"
#include "cuda/params.h"
#include "cuda/tile/product.cuh"
#include "cuda/tile/rows.cuh"
#include "cuda/tile/tile_copy.cuh"
#include "cuda/tile_config.h"

namespace tilewise::cuda::sm80 {

template <TileConfig kTile>
struct ForwardSmem {
  SmemTile<kTile.block_m, kTile.head_dim> q;
  SmemTile<kTile.block_n, kTile.head_dim> k, v;
};

template <DType kType, TileConfig kTile>
struct Forward {
  static constexpr int kHeadDim = kTile.head_dim, kThreads = kTile.threads();
  static constexpr int kRowAtoms = kTile.block_m / kTile.warps / 16;
  using QueryTile = SmemTile<kTile.block_m, kHeadDim>;
  using KeyTile = SmemTile<kTile.block_n, kHeadDim>;
  using QueryCopy = TileCopy<kThreads, kTile.block_m, kHeadDim>;
  using KeyCopy = TileCopy<kThreads, kTile.block_n, kHeadDim>;
  using Scores = Accumulator<kRowAtoms, kTile.block_n / 8>;
  using Output = Accumulator<kRowAtoms, kHeadDim / 8>;
  using Ops = RowOps<Scores::kRows>;
  // A row's reference follows its maximum only from so far (base 2): weights are 2^8 at most, and
  // most steps rescale nothing.
  static constexpr float kReferenceSlack = 8.0f;

  const ForwardParams& p;
  ForwardSmem<kTile>& smem;
  const Place at;
  const int first_row = warp_id() * 16 * kRowAtoms;  // of this warp, in the block

  // This thread's part of the keys and values to be loaded next.
  const uint16_t* k_next = nullptr;
  const uint16_t* v_next = nullptr;
  Output o;
  RowSoftmax<Scores::kRows> softmax;
  bool hidden_values = false;

  __device__ __forceinline__ void run() {
    const Steps kv = at.steps(p, kTile.block_n, kTile.banded());
    if (kv.end > kv.begin) load_first(kv.end - 1);
    o.clear();
    // From the last keys to the first: the edge on the right, the full tiles, the edge on the left.
    int n_block = kv.end - 1;
    if constexpr (kTile.one_loop) {
      for (; n_block >= kv.begin; --n_block) step(n_block, kv, !kv.is_full(n_block));
    } else {
      for (int edge_end = kv.full_end; n_block >= kv.begin; edge_end = kv.begin) {
        for (; n_block >= edge_end; --n_block) step(n_block, kv, true);
        for (; n_block >= kv.full_begin; --n_block) step(n_block, kv, false);
      }
    }
    store();
    if constexpr (kTile.banded()) {
      if (__syncthreads_or(static_cast<int>(hidden_values))) mark(p, at, kv);
    }
  }

  // One step: S = Q K^T, P = softmax weights, O = O * factor + P V. V is on its way during the
  // first product, the next step's K during the second. An edge has keys that some row does not
  // see.
  __device__ __forceinline__ void step(int n_block, const Steps& kv, bool edge) {
    const int key = n_block * kTile.block_n;
    if (n_block + 1 == kv.end) {
      ptx::cp_async_wait_group<1>();  // load_first() has issued the loads of V too
      __syncthreads();                // Q and K are there
    } else {
      ptx::cp_async_wait_group<0>();
      __syncthreads();  // K is there, and nobody reads V any more
      load_next(smem.v, p.v, v_next);
    }
    Scores s;
    s.clear();
    product<kType, kTile.head_dim / 16>(s, LeftRows<QueryTile>(smem.q, first_row),
                                        RightTransposed<KeyTile>(smem.k, 0));
    ptx::cp_async_wait_group<0>();
    if (kTile.banded() && edge) hidden_values |= hide_values<kType, KeyCopy>(smem.v);
    __syncthreads();  // V is there, and nobody reads K any more
    if (n_block > kv.begin) load_next(smem.k, p.k, k_next);

    Exponents exponents = {p.scale * kLog2e};
    if constexpr (kTile.general()) exponents = transform_scores(s, p, at, first_row, key);
    if (edge) hide_keys<kTile.banded()>(s, p, at, first_row, key);
    const auto highest = Ops::quad_max(row_max(s, exponents));
    rescale(o, softmax.update(Ops::beyond(highest, softmax.reference, kReferenceSlack)));
    product<kType, kTile.block_n / 16, false>(o, Weights<kType, Scores>{s, exponents, softmax},
                                              RightRows<1, KeyTile>(smem.v, 0, 0));
  }

  // Issues the loads of the queries and of the last step, the only one that can lack keys.
  __device__ __forceinline__ void load_first(int n_block) {
    clear_padding();
    load_queries();
    const int key = n_block * kTile.block_n, rows = min(at.n_k - key, kTile.block_n);
    k_next = KeyCopy::source(at.k_row(p, key), p.k.seqlen);
    v_next = KeyCopy::source(at.v_row(p, key), p.v.seqlen);
    load_next(smem.k, p.k, k_next, rows);
    load_next(smem.v, p.v, v_next, rows);
  }
  // Issues the load of a tile of keys or values, and moves on to the tile before it.
  __device__ __forceinline__ void load_next(KeyTile& tile, const TensorRef& x,
                                            const uint16_t*& next, int rows = kTile.block_n) {
    if (kTile.general() && !x.vectors) {
      KeyCopy::elements(tile, next, x.seqlen, x.dim, rows);
    } else {
      KeyCopy::some(tile, next, x.seqlen, x.dim, rows);
    }
    ptx::cp_async_commit_group();
    next -= kTile.block_n * x.seqlen;
  }
  __device__ __forceinline__ void load_queries() {
    const auto row = [&](int r) { return at.q_row(p, r); };
    if (kTile.general() && !p.q.vectors) {
      load_rows<false, kThreads>(smem.q, row, at.rows, p.q.dim);
    } else if (p.pack > 1) {  // rows of packed heads lie at no common stride
      load_rows<true, kThreads>(smem.q, row, at.rows, p.q.dim);
    } else {
      const uint16_t* from = QueryCopy::source(row(0), p.q.seqlen);
      QueryCopy::some(smem.q, from, p.q.seqlen, p.q.dim, at.rows);
    }
  }
  // Nothing is loaded to chunks that the rows do not have; they are zeros all the time.
  __device__ __forceinline__ void clear_padding() {
    if (p.q.dim == kHeadDim && p.v.dim == kHeadDim) return;
    uint4* chunks = reinterpret_cast<uint4*>(&smem);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof(smem) / sizeof(uint4));
         i += kThreads) {
      chunks[i] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
  }

  __device__ __forceinline__ void store() {
    softmax.sum = Ops::quad_sum(softmax.sum);
    Rows<Scores::kRows> lse;
    rescale(o, softmax.finalize(&lse));
    store_lse(lse);
    if (p.num_splits > 1) return store_partial();
    uint16_t* const first = at.o_row(p, 0);
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      const int row = first_row + Output::row(r);
      uint16_t* to = first + row * p.o.seqlen;
      if (p.pack > 1) to = at.o_row(p, min(row, at.rows - 1));
#pragma unroll
      for (int j = 0; j < Output::kCols; j += 8) {  // four chunks, of which a lane stores one
        const auto pair = [&](int i) {
          return ptx::pack<kType>(o.at(r, j + i), o.at(r, j + i + 1));
        };
        const uint4 x = quad_transposed({pair(0), pair(2), pair(4), pair(6)});
        const int chunk = j / 2 + lane_id() % 4, count = row < at.rows ? p.o.dim - 8 * chunk : 0;
        if (count <= 0) continue;
        if (kTile.general() && (!p.o.vectors || count < 8)) {
          store_elements(to + 8 * chunk, x, count);
        } else {
          *reinterpret_cast<uint4*>(to + 8 * chunk) = x;
        }
      }
    }
  }
  // A lane stores one row.
  __device__ __forceinline__ void store_lse(const Rows<Scores::kRows>& lse) {
    float mine = lse.x[0];
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      const float x = __shfl_sync(0xffffffffu, lse.x[r], lane_id() % 8 * 4);
      if (lane_id() / 8 == r) mine = x;
    }
    const int row = first_row + lane_id();
    if (lane_id() < 16 * kRowAtoms && row < at.rows) at.store_lse(p, row, mine);
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
  constexpr TileConfig kTile =
      forward_tile_sm80(kHeadDim, forward_variant_sm80(kHeadDim, kVariant));
  extern __shared__ __align__(128) uint4 shared[];
  const Place at = Place::of_block(p, kTile.block_m, kTile.banded());
  if (at.rows <= 0) return;
  Forward<kType, kTile>{p, *reinterpret_cast<ForwardSmem<kTile>*>(shared), at}.run();
}

}  // namespace tilewise::cuda::sm80
