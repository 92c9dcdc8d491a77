// Elements of Q, dO and K that are not finite, in the backward's steps at an edge.
//
// 0 * inf is NaN, so such an element would reach, through dS^T Q, P^T dO and dS K, what does not
// see it. S and dP are computed with it; then it becomes 0 for the other products, and what the
// pairs that do see it should show is marked with NaN afterwards. Rare, and slow.
#pragma once

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

// Keys of a block whose gradients get marks: those of a kv head that queries in `blocks`, of
// block_m rows, see. Blocks of rows that are not at an edge have shown all themselves.
struct MarkedKeys {
  int kv_head, block_m;
  BasicSpan<int> keys;
  BasicTileRange<int> blocks;
  bool ragged;  // all blocks of rows are at an edge

  // f(head, first query, end) for each such block of rows.
  template <class F>
  __device__ __forceinline__ void for_edges(const BackwardParams& p, const SequencePlace& at,
                                            const F& f) const {
    for (int head = kv_head * p.group; head < (kv_head + 1) * p.group; ++head) {
      for (int m_block = blocks.begin; m_block < blocks.end; ++m_block) {
        if (blocks.is_full(m_block) && !ragged) continue;
        f(head, m_block * block_m, min((m_block + 1) * block_m, at.n_q));
      }
    }
  }
};

// f(i) for each such element of a row, by a warp.
template <DType kType, class F>
__device__ __forceinline__ void for_nonfinite(const uint16_t* row, int dim, const F& f) {
#pragma unroll 1
  for (int i = lane_id(); i < dim; i += 32) {
    if (not_finite<kType>(row[i]) != 0) f(i);
  }
}

// show(key, i) for each element of the keys' dK (x: Q) or dV (x: dO) that a query gives what is not
// finite, by a warp; of the rows, those from `first` on in steps of `stride`.
template <DType kType, class Show>
__device__ __forceinline__ void mark_key_gradients(const BackwardParams& p, const SequencePlace& at,
                                                   const MarkedKeys& marked, const TensorRef& x,
                                                   int first, int stride, const Show& show) {
  marked.for_edges(p, at, [&](int head, int begin, int end) {
#pragma unroll 1
    for (int query = begin + first; query < end; query += stride) {
      for_nonfinite<kType>(at.query_row(x, query, head), x.dim, [&](int i) {
#pragma unroll 1
        for (int key = marked.keys.begin; key < marked.keys.end; ++key) {
          if (takes_part(p, at, head, query, key)) show(key, i);
        }
      });
    }
  });
}

// NaN in the sums of dQ where a key that the row sees has such an element; of the keys, those from
// `first` on in steps of `stride`.
template <DType kType, int kHeadDim>
__device__ __forceinline__ void mark_query_gradients(const BackwardParams& p,
                                                     const SequencePlace& at,
                                                     const MarkedKeys& marked, int first,
                                                     int stride) {
  marked.for_edges(p, at, [&](int head, int begin, int end) {
    float* const sums = p.dq_sum + at.padded_row(head, begin) * kHeadDim;
#pragma unroll 1
    for (int key = marked.keys.begin + first; key < marked.keys.end; key += stride) {
      for_nonfinite<kType>(at.key_row(p.k, key, marked.kv_head), p.k.dim, [&](int i) {
#pragma unroll 1
        for (int query = begin; query < end; ++query) {
          if (!takes_part(p, at, head, query, key)) continue;
          ptx::red_add(sums + sum_offset<kHeadDim>(query - begin, i), __builtin_nanf(""));
        }
      });
    }
  });
}

}  // namespace tilewise::cuda
