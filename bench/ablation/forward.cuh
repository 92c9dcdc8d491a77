// A forward in which FlashAttention-2's three changes to FlashAttention-1 are switches
// (docs/kernels/flash_attention_2.md). For measurements only: the library's is
// cuda/sm80/forward.cuh.
//
// - Normalise: O is divided by the row sums after every block of keys, or once at the end.
// - kParallelRows: one thread block walks all query rows of a head, or every block of query rows
//   has its own.
// - Split: the warps divide the keys among them and add up their products in shared memory
//   (meeting.cuh), or divide the query rows and never meet.
//
// Everything else is the same for all: tiles in registers and shared memory, asynchronous copies,
// exponentials in base 2, keys from last to first.
#pragma once

#include <type_traits>

#include "bench/ablation/meeting.cuh"
#include "bench/ablation/params.h"
#include "bench/ablation/products.cuh"
#include "bench/ablation/tile.h"
#include "cuda/common/place.cuh"
#include "cuda/common/scores.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/fragment.cuh"
#include "cuda/tile/rows.cuh"

namespace tilewise::ablation {

using namespace tilewise::cuda;

struct NoMeeting {};

template <Tile kTile>
struct Smem : std::conditional_t<kTile.splits_keys(), Meeting<kTile>, NoMeeting> {
  SmemTile<kTile.block_m, kTile.head_dim> q;  // O on its way out
  SmemTile<kTile.block_n, kTile.head_dim> k[kTile.stages()], v[kTile.stages()];
};

template <DType kType, Tile kTile, Normalise kNormalise, bool kParallelRows, bool kCausal>
struct Forward {
  static constexpr int kThreads = kTile.threads(), kStages = kTile.stages();
  static constexpr int kRowAtoms = kTile.row_atoms(), kOwnAtoms = kTile.own_atoms();
  static constexpr bool kEveryBlock = kNormalise == Normalise::kEveryBlock;
  using Scores = Accumulator<kRowAtoms, kTile.keys() / 8>;
  using Product = Accumulator<kRowAtoms, kTile.head_dim / 8>;
  using Output = Accumulator<kRowAtoms, kOwnAtoms>;  // a split of the keys divides O's columns
  using Ops = RowOps<Scores::kRows>;
  using RowValues = Rows<Scores::kRows>;
  using Keys = SmemTile<kTile.keys(), kTile.head_dim>;

  const AblationParams& ablation;
  Smem<kTile>& smem;
  Place at;
  const ForwardParams& p = ablation.forward;
  const Exponents exponents = {p.scale * kLog2e};
  const int row_warp = warp_id() / kTile.key_warps, key_warp = warp_id() % kTile.key_warps;
  const int first_row = row_warp * 16 * kRowAtoms;  // of this warp, in the block
  const uint16_t* const k_head = at.k_row(p, 0);
  const uint16_t* const v_head = at.v_row(p, 0);
  Output o;
  RowSoftmax<Scores::kRows> softmax;

  // The second change: without it one thread block computes all query rows of a head.
  __device__ __forceinline__ void run() {
    const int first = kParallelRows ? static_cast<int>(blockIdx.x) : 0;
    const int end = kParallelRows ? first + 1 : p.m_blocks;
    for (int i = first; i < end; ++i) {
      const int m_block = kCausal ? p.m_blocks - 1 - i : i;  // the longest first
      at.first_row = m_block * kTile.block_m;
      at.rows = min(at.n_q - at.first_row, kTile.block_m);
      attend();
    }
  }

  __device__ __forceinline__ void attend() {
    const Steps kv = at.steps(p, kTile.block_n, kCausal);
    __syncthreads();  // the O before has left
    load_tile<kThreads, false>(smem.q, at.q_row(p, 0), p.q.seqlen, at.rows, p.q.dim);
    load<false>(smem.k, p.k, k_head, kv.end - 1);
    load<false>(smem.v, p.v, v_head, kv.end - 1);
    o.clear();
    softmax = {};
    int n_block = kv.end - 1;
    for (int edge_end = kv.full_end; n_block >= kv.begin; edge_end = kv.begin) {
      for (; n_block >= edge_end; --n_block) step<true>(n_block, kv.begin);
      for (; n_block >= kv.full_begin; --n_block) step<false>(n_block, kv.begin);
    }
    finish();
  }

  // The third change: what a step is without and with a split of the keys. The first change is in
  // both: what kEveryBlock adds.
  template <bool kEdge>
  __device__ __forceinline__ void step(int n_block, int begin) {
    if constexpr (kTile.splits_keys()) {
      step_of_keys<kEdge>(n_block, begin);
    } else {
      step_of_queries<kEdge>(n_block, begin);
    }
  }

  template <bool kEdge>
  __device__ __forceinline__ void step_of_queries(int n_block, int begin) {
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // K and V are there, and nobody reads the next ones' place any more
    if (n_block > begin) {
      load<true>(smem.k, p.k, k_head, n_block - 1);
      load<true>(smem.v, p.v, v_head, n_block - 1);
    }
    const int stage = n_block % kStages;
    Scores s;
    multiply_transposed<kType>(s, smem.q, first_row, smem.k[stage]);
    hide<kEdge>(s, n_block);
    const RowValues factor = softmax.update(Ops::quad_max(row_max(s, exponents)));
    if constexpr (kEveryBlock) {
      // O <- (l_old factor O + P V) / l. The division of P takes fewer products than that of P V.
      const RowValues undo = softmax.sum;  // update() has multiplied it by the factor
      softmax.sum = undo + weigh(s);
      const RowValues inverse = inverse_sum();
      multiply(o, undo * inverse);
      multiply(s, inverse);
    } else {
      multiply(o, factor);
      exponentiate(s, exponents, softmax);  // each lane's own sums, until finish()
    }
    accumulate<kType>(o, s, smem.v[stage]);
  }

  template <bool kEdge>
  __device__ __forceinline__ void step_of_keys(int n_block, int begin) {
    ptx::cp_async_wait_group<1>();
    __syncthreads();  // K is there
    Scores s;
    multiply_transposed<kType>(s, smem.q, first_row, part(smem.k[0]));
    hide<kEdge>(s, n_block);
    smem.publish(smem.maxima, Ops::quad_max(row_max(s, exponents)));
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // V is there, the maxima too, and nobody reads K any more
    if (n_block > begin) load<true>(smem.k, p.k, k_head, n_block - 1);
    const RowValues factor = softmax.update(smem.highest());
    if constexpr (kEveryBlock) {
      multiply(o, softmax.sum);  // times l_old and the factor
      smem.publish(smem.sums, weigh(s));
    } else {
      multiply(o, factor);
      exponentiate(s, exponents, softmax);
    }
    Product product;
    product.clear();
    accumulate<kType>(product, s, part(smem.v[0]));
    smem.give(product, o);
    __syncthreads();  // the products are there, and nobody reads V any more
    if (n_block > begin) load<true>(smem.v, p.v, v_head, n_block - 1);
    smem.take(o);
    if constexpr (kEveryBlock) {
      softmax.sum = softmax.sum + smem.total();
      multiply(o, inverse_sum());
    }
  }

  // Issues the load of a step's keys or values.
  template <bool kAllRows>
  __device__ __forceinline__ void load(SmemTile<kTile.block_n, kTile.head_dim> (&to)[kStages],
                                       const TensorRef& x, const uint16_t* head, int n_block) {
    const int key = n_block * kTile.block_n;
    load_tile<kThreads, kAllRows>(to[n_block % kStages], head + key * x.seqlen, x.seqlen,
                                  min(at.n_k - key, kTile.block_n), x.dim);
    ptx::cp_async_commit_group();
  }
  // This warp's keys of a step. The swizzle repeats after 8 rows, so they are a tile as well.
  __device__ __forceinline__ const Keys& part(
      const SmemTile<kTile.block_n, kTile.head_dim>& tile) const {
    return *reinterpret_cast<const Keys*>(tile.data + key_warp * kTile.keys() * kTile.head_dim);
  }

  template <bool kEdge>
  __device__ __forceinline__ void hide(Scores& s, int n_block) const {
    if constexpr (kEdge) {
      hide_keys<kCausal>(s, p, at, first_row, n_block * kTile.block_n + key_warp * kTile.keys());
    }
  }

  // Scores become weights; returns their sums over this warp's keys.
  __device__ __forceinline__ RowValues weigh(Scores& s) const {
    RowSoftmax<Scores::kRows> block{softmax.reference, Ops::zero()};
    exponentiate(s, exponents, block);
    return Ops::quad_sum(block.sum);
  }
  __device__ __forceinline__ RowValues inverse_sum() const {
    return Ops::map([&](int r) {
      return softmax.sum.x[r] == 0.0f ? 0.0f : __fdividef(1.0f, softmax.sum.x[r]);
    });
  }
  template <class Tile>
  static __device__ __forceinline__ void multiply(Tile& x, const RowValues& factor) {
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) {
#pragma unroll
      for (int j = 0; j < Tile::kCols; ++j) x.at(r, j) *= factor.x[r];
    }
  }

  // The row statistics, and O by way of q's place.
  __device__ __forceinline__ void finish() {
    RowValues lse = softmax.sum;
    if constexpr (!kEveryBlock) {
      softmax.sum = Ops::quad_sum(softmax.sum);
      if constexpr (kTile.splits_keys()) {
        smem.publish(smem.sums, softmax.sum);
        __syncthreads();
        softmax.sum = smem.total();
      }
      multiply(o, softmax.finalize(&lse));
    }
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      const int row = first_row + Scores::row(r);
      if (key_warp != 0 || lane_id() % 4 != 0 || row >= at.rows) continue;
      at.store_lse(p, row, lse.x[r]);
      if constexpr (kEveryBlock) {  // FlashAttention-1 keeps the sum and the maximum, lse is one
        ablation.row_max[at.batch * p.lse_batch + at.head(p, row) * p.lse_head + at.query(p, row)] =
            kLn2 * softmax.reference.x[r];
      }
    }
    __syncthreads();  // nobody reads q any more
#pragma unroll
    for (int r = 0; r < Output::kRows; ++r) {
#pragma unroll
      for (int j = 0; j < Output::kCols; j += 2) {
        const int row = first_row + Output::row(r), x = 8 * kOwnAtoms * key_warp + Output::col(j);
        *reinterpret_cast<uint32_t*>(smem.q.data + smem.q.offset(row, x / 8) + x % 8) =
            ptx::pack<kType>(o.at(r, j), o.at(r, j + 1));
      }
    }
    __syncthreads();
    constexpr int kRowsOut = kTile.block_m / kTile.warps();
    uint16_t* const first = at.o_row(p, 0);
    store_rows(
        smem.q, [&](int r) { return first + r * p.o.seqlen; }, warp_id() * kRowsOut,
        min((warp_id() + 1) * kRowsOut, at.rows), p.o.dim, true);
  }
};

// With kParallelRows gridDim.x is the number of blocks of query rows, else 1.
template <DType kType, int kHeadDim, Normalise kNormalise, bool kParallelRows, Split kSplit,
          bool kCausal>
__global__ void __launch_bounds__(tile_of(kHeadDim, kSplit, kParallelRows, kCausal).threads(),
                                  tile_of(kHeadDim, kSplit, kParallelRows, kCausal).blocks_per_sm)
    forward(const __grid_constant__ AblationParams params) {
  constexpr Tile kTile = tile_of(kHeadDim, kSplit, kParallelRows, kCausal);
  extern __shared__ uint4 shared[];
  const Place at = Place::of_block(params.forward, kTile.block_m, kCausal);
  Forward<kType, kTile, kNormalise, kParallelRows, kCausal>{
      params, *reinterpret_cast<Smem<kTile>*>(shared), at}
      .run();
}

}  // namespace tilewise::ablation
