// The FlashAttention-2 backward (arXiv 2307.08691, algorithm 2) on mma.sync.
//
// One thread block has one block of keys of a kv head and walks over the blocks of query rows that
// see it, of all query heads of the group. dK and dV stay in registers; dQ is added to fp32 sums in
// global memory. S and dP are computed transposed, keys as rows: where a warp has the same keys
// throughout, P^T and dS^T are left operands as they are, and only dS crosses between warps, once.
#pragma once

#include "cuda/backward_tile.h"
#include "cuda/common/dq_sum.cuh"
#include "cuda/common/gradients.cuh"
#include "cuda/common/nonfinite.cuh"
#include "cuda/params.h"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/product.cuh"

namespace tilewise::cuda::sm80 {

template <BackwardTile kTile>
struct BackwardStage {
  SmemTile<kTile.block_m, kTile.head_dim> q, do_;
  float lse[kTile.block_m], delta[kTile.block_m];
};

template <BackwardTile kTile>
struct BackwardSmem {
  SmemTile<kTile.block_n, kTile.head_dim> k, v;  // dK and dV on their way out
  // dS^T, and P^T unless it stays in registers
  SmemTile<kTile.block_n, kTile.block_m> pairs[kTile.register_operands() ? 1 : 2];
  BackwardStage<kTile> stages[kTile.stages];
  // nonfinite.cuh, in shared memory as registers have no room. Are there elements that are not
  // finite in K (perhaps), in Q or dO of this step, in one of the three in a step so far?
  alignas(128) int bad_keys;
  int bad_rows, taken_out;
};

template <DType kType, BackwardTile kTile>
struct Backward {
  static constexpr int kThreads = kTile.threads();
  static constexpr int kM = kTile.block_m, kN = kTile.block_n, kDim = kTile.head_dim;
  using Scores = Accumulator<kTile.score_key_atoms(), kTile.chunk / 8>;
  using Gradient = Accumulator<kTile.gradient_key_atoms(), kDim / 8 / kTile.gradient_dim_warps()>;
  using Stage = BackwardStage<kTile>;
  using Keys = SmemTile<kN, kDim>;
  using Queries = SmemTile<kM, kDim>;
  using Pairs = SmemTile<kN, kM>;

  // A step: one block of query rows of one query head.
  struct Step {
    int head, m_block;
  };

  const BackwardParams& p;
  BackwardSmem<kTile>& smem;
  const SequencePlace at;
  const int kv_head, n_block;
  const int key = n_block * kN;
  const BasicTileRange<int> blocks =
      (kTile.banded() ? p.mask : MaskSpec{}).q_range(key, key + kN, at.lengths(), kM);
  __device__ __forceinline__ bool ragged() const { return key + kN > at.n_k; }

  // This warp's share of each product. Asked for each time: one variable for all cost registers.
  static __device__ __forceinline__ int warp() { return uniform(warp_id()); }
  const int score_key = warp() % kTile.score_key_warps * (kN / kTile.score_key_warps);
  const int score_query = warp() / kTile.score_key_warps * kTile.score_queries();
  const int gradient_key = warp() % kTile.gradient_key_warps * (kN / kTile.gradient_key_warps);
  const int gradient_share = warp() / kTile.gradient_key_warps;
  const int dq_query = warp() % kTile.dq_query_warps * (kM / kTile.dq_query_warps);
  const int dq_share = warp() / kTile.dq_query_warps;

  Gradient dk, dv;

  __device__ __forceinline__ void run() {
    dk.clear();
    dv.clear();
    if (kTile.banded() && threadIdx.x == 0) {
      smem.bad_keys = 0;
      smem.taken_out = 0;
    }
    Step now = {kv_head * p.group, blocks.begin};
    int left = (blocks.end - blocks.begin) * p.group;
    if (left > 0) {
      load_pair(smem.k, smem.v, p.k, p.v, at.key_row(p.k, key, kv_head),
                at.key_row(p.v, key, kv_head), at.n_k - key);
      load_queries(now, smem.stages[0]);
    }
    for (int stage = 0; left > 0; --left) {
      Step next = {now.head, now.m_block + 1};
      if (next.m_block == blocks.end) next = {now.head + 1, blocks.begin};
      const int next_stage = kTile.stages - 1 - stage;
      if (is_edge(now.m_block)) {
        step<true>(now, next, left > 1, smem.stages[stage], smem.stages[next_stage]);
      } else {
        step<false>(now, next, left > 1, smem.stages[stage], smem.stages[next_stage]);
      }
      now = next;
      stage = next_stage;
    }
    synchronize_and_end_turn(now);  // K has been read
    store();
    if (kTile.banded() && uniform(smem.taken_out | smem.bad_keys) != 0) {
      mark(p, at.batch, kv_head, n_block);
    }
  }

  // Is some key of the block hidden from some row of that block, or one of them not there?
  __device__ __forceinline__ bool is_edge(int m_block) const {
    return ragged() || (kTile.banded() ? !blocks.is_full(m_block) : (m_block + 1) * kM > at.n_q);
  }

  template <bool kEdge>
  __device__ __forceinline__ void step(Step now, Step next, bool more, Stage& rows,
                                       Stage& next_rows) {
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // Q, dO are there; nobody reads dS and the next ones' place any more
    if (kTile.stages == 2 && more) load_queries(next, next_rows);
    if constexpr (kEdge && kTile.banded()) look_for_nonfinite(rows);
#pragma unroll 1  // 2 % slower than unrolled at d=64, but there without room for its addresses
    for (int x = 0; x < kTile.score_queries(); x += kTile.chunk) {
      pairs<kEdge>(now, rows, score_query + x);
    }
    synchronize_and_end_turn(now);
    if constexpr (!kTile.register_operands()) {
      if (kEdge && kTile.banded() && uniform(smem.bad_rows) != 0) {
        take_out<kType, kThreads>(rows.q, rows.do_, 0, kM);
      }
      product<kType, kM / 16>(
          dv, LeftRows(smem.pairs[1], gradient_key),
          RightRows<kTile.gradient_dim_warps(), Queries>(rows.do_, 0, gradient_share));
      product<kType, kM / 16>(
          dk, LeftRows(smem.pairs[0], gradient_key),
          RightRows<kTile.gradient_dim_warps(), Queries>(rows.q, 0, gradient_share));
    }
    if (kTile.stages == 1 && more) {
      if constexpr (!kTile.register_operands()) __syncthreads();
      load_queries(next, next_rows);
    }
    query_gradient<kEdge>(now);
  }

  __device__ __forceinline__ void look_for_nonfinite(const Stage& rows) {
    // Under a softcap the scores of an infinite q are finite.
    const bool look = (kTile.general() && p.softcap > 0.0f) || suspicious(rows.lse, rows.delta);
    const bool queries = uniform(look && has_nonfinite<kType, kThreads>(rows.q, rows.do_)) != 0;
    // By all threads: a branch on one of them costs the whole loop its uniform registers.
    smem.bad_rows = queries;
    if (queries) smem.taken_out = 1;
    if constexpr (kTile.register_operands()) __syncthreads();  // else they are read after one
  }

  // P and dS of this warp's keys and the queries [query, query + chunk) of the block, and what they
  // give to dV and dK.
  template <bool kEdge>
  __device__ __forceinline__ void pairs(Step now, Stage& rows, int query) {
    Scores s, ds;
    s.clear();
    product<kType, kDim / 16>(s, LeftRows(smem.k, score_key), RightTransposed(rows.q, query));
    if constexpr (kEdge && kTile.banded()) {
      if (has_nonfinite_row(s)) atomicOr(&smem.bad_keys, 1);
    }
    [[maybe_unused]] Scores slope_of_cap;
    if constexpr (kTile.general()) {
      general_weights(s, slope_of_cap, p, at, now.head, key + score_key, now.m_block * kM + query,
                      rows.lse + query);
    } else {
      weights(s, p.scale * kLog2e, rows.lse + query);
    }
    [[maybe_unused]] Visible<Scores> visible;
    if constexpr (kEdge) {
      visible = Visible<Scores>::template of<kTile.banded()>(p, at, key + score_key,
                                                             now.m_block * kM + query);
      visible.keep(s);
    }
    ds.clear();
    product<kType, kDim / 16>(ds, LeftRows(smem.v, score_key), RightTransposed(rows.do_, query));
    score_gradients(ds, s, rows.delta + query);
    if constexpr (kTile.general()) multiply(ds, slope_of_cap);
    if constexpr (kEdge) {
      visible.keep(ds);
      if (kTile.register_operands() && kTile.banded() && uniform(smem.bad_rows) != 0) {
        take_out<kType, kThreads>(rows.q, rows.do_, query, kTile.chunk);
      }
    }
    if constexpr (kTile.register_operands()) {
      product<kType, kTile.chunk / 16>(dv, LeftRegisters<kType, Scores>{s},
                                       RightRows<1, Queries>(rows.do_, query, 0));
      product<kType, kTile.chunk / 16>(dk, LeftRegisters<kType, Scores>{ds},
                                       RightRows<1, Queries>(rows.q, query, 0));
    } else {
      store_accumulator<kType, 1>(smem.pairs[1], score_key, query / 16, s);
    }
    store_accumulator<kType, 1>(smem.pairs[0], score_key, query / 16, ds);
  }

  // dQ += dS K, in parts that leave registers free and that are added beside the next one.
  template <bool kEdge>
  __device__ __forceinline__ void query_gradient(Step now) {
    constexpr int kAtoms = kDim / 8 / kTile.dq_dim_warps(), kParts = kAtoms > 6 ? 2 : 1;
    using Part = Accumulator<kM / kTile.dq_query_warps / 16, kAtoms / kParts>;
    if (kEdge && kTile.banded() && uniform(smem.bad_keys) != 0)
      take_out<kType, kThreads>(smem.k, smem.k, 0, kN);
    const int64_t block = at.padded_row(now.head, now.m_block * kM) / kM;
    if (p.dq_turn != nullptr) wait_for_turn(block, now.m_block);
    float* const sums = p.dq_sum + block * (kM * kDim);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int share = dq_share + part * kTile.dq_dim_warps() * (kAtoms / kParts / 2);
      Part dq;
      dq.clear();
      product<kType, kN / 16>(dq, LeftColumns(smem.pairs[0], dq_query),
                              RightRows<kTile.dq_dim_warps(), Keys>(smem.k, 0, share));
#pragma unroll
      for (int m = 0; m < Part::kRows / 2; ++m) {
#pragma unroll
        for (int n = 0; n < Part::kCols / 2; ++n) {
          const int column = shared_column_atom<kTile.dq_dim_warps()>(n, share);
          add_atom(sums + atom_offset<kDim>(dq_query / 16 + m, column), dq.c[m][n]);
        }
      }
    }
    if (kEdge && kTile.banded() && uniform(smem.bad_keys) != 0) {
      put_back_keys(p, smem.k, at.key_row(p.k, key, kv_head), at.n_k - key);
    }
  }

  // Deterministic: key blocks add from the last that the rows see to the first. Under a causal
  // mask that is the order in which they come to a block of rows.
  __device__ __forceinline__ void wait_for_turn(int64_t block, int m_block) {
    if (threadIdx.x == 0) {
      const BasicTileRange<int> kv =
          (kTile.banded() ? p.mask : MaskSpec{})
              .kv_range(m_block * kM, (m_block + 1) * kM, at.lengths(), kN);
      while (ptx::load_acquire(p.dq_turn + block) != kv.end - 1 - n_block) __nanosleep(20);
    }
    __syncthreads();
  }
  // In place of a __syncthreads() of step `now`: the step before has had time to add.
  __device__ __forceinline__ void synchronize_and_end_turn(Step now) {
    if (p.dq_turn == nullptr) return __syncthreads();
    __threadfence();
    __syncthreads();
    const bool first = now.head == kv_head * p.group && now.m_block == blocks.begin;
    if (threadIdx.x != 0 || first) return;
    if (--now.m_block < blocks.begin) now = {now.head - 1, blocks.end - 1};
    ptx::red_add_release(p.dq_turn + at.padded_row(now.head, now.m_block * kM) / kM, 1);
  }

  __device__ __forceinline__ void load_queries(Step step, Stage& to) {
    const int row = step.m_block * kM;
    load_pair(to.q, to.do_, p.q, p.do_, at.query_row(p.q, row, step.head),
              at.query_row(p.do_, row, step.head), at.n_q - row);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < kM / 2) {  // 16 bytes each
      const int64_t from = at.padded_row(step.head, row) + thread % (kM / 4) * 4;
      const bool first = thread < kM / 4;
      ptx::cp_async_16(smem_address((first ? to.lse : to.delta) + thread % (kM / 4) * 4),
                       (first ? p.row_lse : p.delta) + from, 16);
    }
    ptx::cp_async_commit_group();
  }

  // The same rows of two tensors.
  template <class Tile>
  static __device__ __forceinline__ void load_pair(Tile& a, Tile& b, const TensorRef& x,
                                                   const TensorRef& y, const uint16_t* first_x,
                                                   const uint16_t* first_y, int rows) {
    if (rows >= Tile::kRowCount) {
      load<true>(a, x, first_x, rows);
      load<true>(b, y, first_y, rows);
    } else {
      load<false>(a, x, first_x, rows);
      load<false>(b, y, first_y, rows);
    }
  }
  template <bool kAllRows, class Tile>
  static __device__ __forceinline__ void load(Tile& tile, const TensorRef& x, const uint16_t* first,
                                              int rows) {
    if (kTile.general() && !x.vectors) {
      load_rows<false, kThreads>(
          tile, [&](int r) { return first + r * x.seqlen; }, rows, x.dim);
    } else {
      load_tile<kThreads, kAllRows>(tile, first, x.seqlen, rows, x.dim);
    }
  }

  static __device__ __noinline__ void put_back_keys(const BackwardParams& p, Keys& keys,
                                                    const uint16_t* first, int rows) {
    __syncthreads();
    load<false>(keys, p.k, first, rows);
    ptx::cp_async_commit_group();
    ptx::cp_async_wait_group<0>();
    __syncthreads();
  }

  // After all steps: what elements that are not finite give, where the products hid it.
  static __device__ __noinline__ void mark(const BackwardParams& p, int batch, int kv_head,
                                           int n_block) {
    const SequencePlace at = SequencePlace::of(p, batch, kM);
    __syncthreads();  // dK and dV have been stored
    const int first = n_block * kN, end = min(first + kN, at.n_k);
    const MarkedKeys marked = {kv_head,
                               kM,
                               {first, end},
                               p.mask.q_range(first, first + kN, at.lengths(), kM),
                               end < first + kN};
    const auto show_in = [&](const TensorRef& gradient) {
      return [&](int key, int i) { at.key_row(gradient, key, kv_head)[i] = 0x7fff; };
    };
    mark_key_gradients<kType>(p, at, marked, p.q, warp_id(), kTile.warps, show_in(p.dk));
    mark_key_gradients<kType>(p, at, marked, p.do_, warp_id(), kTile.warps, show_in(p.dv));
    mark_query_gradients<kType, kDim>(p, at, marked, warp_id(), kTile.warps);
  }

  __device__ __forceinline__ void store() {
#pragma unroll
    for (int r = 0; r < Gradient::kRows; ++r) {
#pragma unroll
      for (int j = 0; j < Gradient::kCols; ++j) dk.at(r, j) *= p.scale;
    }
    store_accumulator<kType, kTile.gradient_dim_warps()>(smem.k, gradient_key, gradient_share, dk);
    store_accumulator<kType, kTile.gradient_dim_warps()>(smem.v, gradient_key, gradient_share, dv);
    __syncthreads();
    constexpr int kRows = kN / kTile.warps;
    const int begin = warp() * kRows, end = min(begin + kRows, at.n_k - key);
    uint16_t* const dk_rows = at.key_row(p.dk, key, kv_head);
    uint16_t* const dv_rows = at.key_row(p.dv, key, kv_head);
    store_rows(
        smem.k, [&](int r) { return dk_rows + r * p.dk.seqlen; }, begin, end, p.dk.dim,
        p.dk.vectors);
    store_rows(
        smem.v, [&](int r) { return dv_rows + r * p.dv.seqlen; }, begin, end, p.dv.dim,
        p.dv.vectors);
  }
};

template <DType kType, int kHeadDim, Variant kVariant>
__global__ void __launch_bounds__(backward_tile_sm80(kHeadDim, kVariant).threads(),
                                  backward_tile_sm80(kHeadDim, kVariant).blocks_per_sm)
    backward(const __grid_constant__ BackwardParams p) {
  constexpr BackwardTile kTile = backward_tile_sm80(kHeadDim, kVariant);
  extern __shared__ __align__(128) uint4 shared[];
  int n_block = static_cast<int>(p.heads_first ? blockIdx.y : blockIdx.x);
  int kv_head = static_cast<int>(p.heads_first ? blockIdx.x : blockIdx.y);
  int batch = p.first_batch + static_cast<int>(blockIdx.z);
  if (p.ticket != nullptr) {
    // Those that wait for others come after them: in the order in which thread blocks begin.
    int& next = *reinterpret_cast<int*>(shared);
    if (threadIdx.x == 0) next = atomicAdd(p.ticket, 1);
    __syncthreads();
    const int ticket = uniform(next);
    __syncthreads();
    n_block = p.n_blocks - 1 - ticket % p.n_blocks;
    kv_head = ticket / p.n_blocks % static_cast<int>(gridDim.y);
    batch = ticket / p.n_blocks / static_cast<int>(gridDim.y);
  }
  const SequencePlace at = SequencePlace::of(p, batch, kTile.block_m);
  if (n_block * kTile.block_n >= at.n_k) return;
  Backward<kType, kTile>{p, *reinterpret_cast<BackwardSmem<kTile>*>(shared), at, kv_head, n_block}
      .run();
}

}  // namespace tilewise::cuda::sm80
