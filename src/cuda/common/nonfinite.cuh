// Elements of Q, dO and K that are not finite, in the backward's steps at an edge.
//
// 0 * inf is NaN, so such an element would reach, through dS^T Q, P^T dO and dS K, what does not
// see it. S and dP are computed with it; then it becomes 0 for the other products, and what the
// pairs that do see it should show is marked with NaN afterwards. Rare, and slow: every thread of
// the block is here.
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

// Is a score of some row of S^T not finite? Then so may be the key, or the query, or only the
// score: an element of a key that is not finite shows in all of its scores.
template <class Scores>
__device__ __forceinline__ bool has_nonfinite_row(const Scores& s) {
  bool any = false;
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) any |= !isfinite(s.at(r, 0));
  return uniform(__any_sync(0xffffffffu, any)) != 0;
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
  return uniform(__any_sync(0xffffffffu, any)) != 0;
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
__device__ __forceinline__ bool takes_part(const BackwardParams& p, const SequencePlace& at,
                                           int head, int query, int key) {
  return p.row_lse[at.padded_row(head, query)] != __builtin_inff() &&
         p.mask.visible(query, key, at.lengths());
}

// After all steps of a block of keys: NaN in dK and dV, which have been stored, where a query that
// sees the key has such an element in Q or dO, and in the sums of dQ where a key that the row sees
// has one in K. Blocks of rows that are not at an edge have shown it themselves.
template <DType kType, BackwardTile kTile>
__device__ __noinline__ void mark_gradients(const BackwardParams& p, int batch, int kv_head,
                                            int n_block) {
  const SequencePlace at = SequencePlace::of(p, batch, kTile.block_m);
  __syncthreads();
  const int first = n_block * kTile.block_n, end = min(first + kTile.block_n, at.n_k);
  const BasicTileRange<int> blocks =
      p.mask.q_range(first, first + kTile.block_n, at.lengths(), kTile.block_m);
  // f(i) for each such element of a row.
  const auto for_elements = [](const uint16_t* row, int dim, const auto& f) {
    for (int i = lane_id(); i < dim; i += 32) {
      if (not_finite<kType>(row[i]) != 0) f(i);
    }
  };
  for (int head = kv_head * p.group; head < (kv_head + 1) * p.group; ++head) {
    const auto mark_keys = [&](const TensorRef& x, const TensorRef& gradient, int query) {
      for_elements(at.query_row(x, query, head), x.dim, [&](int i) {
        for (int key = first; key < end; ++key) {
          if (takes_part(p, at, head, query, key)) at.key_row(gradient, key, kv_head)[i] = 0x7fff;
        }
      });
    };
    for (int m_block = blocks.begin; m_block < blocks.end; ++m_block) {
      if (blocks.is_full(m_block) && end == first + kTile.block_n) continue;
      const int row = m_block * kTile.block_m, rows_end = min(row + kTile.block_m, at.n_q);
      for (int query = row + warp_id(); query < rows_end; query += kTile.warps) {
        mark_keys(p.q, p.dk, query);
        mark_keys(p.do_, p.dv, query);
      }
      float* const sums = p.dq_sum + at.padded_row(head, row) * kTile.head_dim;
      for (int key = first + warp_id(); key < end; key += kTile.warps) {
        for_elements(at.key_row(p.k, key, kv_head), p.k.dim, [&](int i) {
          for (int query = row; query < rows_end; ++query) {
            if (!takes_part(p, at, head, query, key)) continue;
            ptx::red_add(sums + sum_offset<kTile.head_dim>(query - row, i), __builtin_nanf(""));
          }
        });
      }
    }
  }
}

}  // namespace tilewise::cuda
