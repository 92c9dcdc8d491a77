// Elements of Q, dO and K that are not finite, in the backward's steps at an edge.
//
// 0 * inf is NaN, so such an element would reach, through dS^T Q, P^T dO and dS K, what does not see
// it. S and dP are computed with it; then it becomes 0 for the other products, and what the pairs
// that do see it should show is marked with NaN afterwards. Rare, and slow: every thread of the
// block is here.
#pragma once

#include "cuda/backward_tile.h"
#include "cuda/common/dq_sum.cuh"
#include "cuda/common/scores.cuh"
#include "cuda/common/sequence_place.cuh"

namespace tilewise::cuda {

// Is there one in one of the tiles? Every thread calls this.
template <DType kType, int kThreads, class... Tiles>
__device__ __forceinline__ bool has_nonfinite(const Tiles&... tiles) {
  uint32_t any = 0;
  const auto look = [&](const auto& tile) {
    const uint4* chunks = reinterpret_cast<const uint4*>(tile.data);
#pragma unroll 8
    for (int i = static_cast<int>(threadIdx.x); i < tile.kSize / 8; i += kThreads) {
      const uint4 x = chunks[i];
      any |= not_finite<kType>(x.x) | not_finite<kType>(x.y) | not_finite<kType>(x.z) |
             not_finite<kType>(x.w);
    }
  };
  (look(tiles), ...);
  return __syncthreads_or(static_cast<int>(any)) != 0;
}

// Has one of the rows an lse or delta that is not finite? Without a softcap, where Q or dO is not,
// they are not.
template <int kRows>
__device__ __forceinline__ bool suspicious(const float (&lse)[kRows], const float (&delta)[kRows]) {
  bool any = false;
#pragma unroll
  for (int row = 0; row < kRows; row += 32) {
    any |= !isfinite(lse[row + lane_id()]) || !isfinite(delta[row + lane_id()]);
  }
  return __any_sync(0xffffffffu, any);
}

// They become 0 in `count` rows from `row` on of both tiles.
template <DType kType, int kThreads, int kRows, int kCols>
__device__ __noinline__ void take_out(SmemTile<kRows, kCols>& a, SmemTile<kRows, kCols>& b, int row,
                                      int count) {
  __syncthreads();
  for (SmemTile<kRows, kCols>* tile : {&a, &b}) {
    uint32_t* pairs = reinterpret_cast<uint32_t*>(tile->data + row * kCols);
    for (int i = static_cast<int>(threadIdx.x); i < count * kCols / 2; i += kThreads) {
      pairs[i] = finite_or_zero<kType>(pairs[i]);
    }
  }
  __syncthreads();
}

// Does the query see the key, and has it a weight for some key?
__device__ __forceinline__ bool takes_part(const BackwardParams& p, const SequencePlace& at, int head,
                                           int query, int key) {
  return p.row_lse[at.padded_row(head, query)] != __builtin_inff() &&
         p.mask.visible(query, key, at.lengths());
}

// dK and dV, which have been stored, of the keys of a block: NaN where a query that sees the key has
// such an element in Q or dO. Blocks of rows that are not at an edge have shown it themselves.
template <DType kType, BackwardTile kTile>
__device__ __noinline__ void mark_key_gradients(const BackwardParams& p, SequencePlace at,
                                                int kv_head, int n_block) {
  __syncthreads();
  const int first = n_block * kTile.block_n, end = min(first + kTile.block_n, at.n_k);
  const BasicTileRange<int> blocks =
      p.mask.q_range(first, first + kTile.block_n, at.lengths(), kTile.block_m);
  const auto mark = [&](const TensorRef& x, const TensorRef& gradient, int head, int query) {
    const uint16_t* row = at.query_row(x, query, head);
    for (int i = lane_id(); i < x.dim; i += 32) {
      if (not_finite<kType>(row[i]) == 0) continue;
      for (int key = first; key < end; ++key) {
        if (takes_part(p, at, head, query, key)) at.key_row(gradient, key, kv_head)[i] = 0x7fff;
      }
    }
  };
  for (int head = kv_head * p.group; head < (kv_head + 1) * p.group; ++head) {
    for (int m_block = blocks.begin; m_block < blocks.end; ++m_block) {
      if (blocks.is_full(m_block) && end == first + kTile.block_n) continue;
      const int rows = min((m_block + 1) * kTile.block_m, at.n_q);
      for (int query = m_block * kTile.block_m + warp_id(); query < rows; query += kTile.warps) {
        mark(p.q, p.dk, head, query);
        mark(p.do_, p.dv, head, query);
      }
    }
  }
}

// The sums of dQ of a block of rows, where a key of the block that the row sees has such an element.
template <DType kType, BackwardTile kTile>
__device__ __noinline__ void mark_query_gradients(const BackwardParams& p, SequencePlace at,
                                                  int head, int n_block, int m_block) {
  const int first_query = m_block * kTile.block_m;
  float* const sums = p.dq_sum + at.padded_row(head, first_query) * kTile.head_dim;
  const int first = n_block * kTile.block_n, end = min(first + kTile.block_n, at.n_k);
  const int rows = min(first_query + kTile.block_m, at.n_q);
  for (int key = first + warp_id(); key < end; key += kTile.warps) {
    const uint16_t* row = at.key_row(p.k, key, head / p.group);
    for (int i = lane_id(); i < p.k.dim; i += 32) {
      if (not_finite<kType>(row[i]) == 0) continue;
      for (int query = first_query; query < rows; ++query) {
        if (!takes_part(p, at, head, query, key)) continue;
        ptx::red_add(sums + sum_offset<kTile.head_dim>(query - first_query, i),
                     __builtin_nanf(""));
      }
    }
  }
}

}  // namespace tilewise::cuda
