// From products to P^T and dS^T: keys are the rows, queries the columns.
//
//   P^T  = exp2(log2e score - log2e lse)
//   dS^T = P^T o (V dO^T - delta)          [o (1 - tanh^2) under a softcap]
#pragma once

#include "cuda/common/scores.cuh"
#include "cuda/common/sequence_place.cuh"
#include "cuda/tile/fragment.cuh"

namespace tilewise::cuda {

// Which queries, of this lane's columns, see the key of each of its rows: a bit a column.
template <class Scores>
struct Visible {
  static_assert(Scores::kCols <= 32);
  uint32_t bits[Scores::kRows];

  template <bool kBanded>
  static __device__ __forceinline__ Visible of(const BackwardParams& p, const SequencePlace& at,
                                               int first_key, int first_query) {
    Visible v;
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      const int key = first_key + Scores::row(r);
      BasicSpan<int> seen = {0, at.n_q};
      if constexpr (kBanded) seen = p.mask.queries_of(key, at.lengths());
      const int begin = seen.begin - first_query;
      const int end = key < at.n_k ? seen.end - first_query : 0;
      if constexpr (Scores::kCols > 16) {
        v.bits[r] = kBanded ? before(end) & ~before(begin) : before(end);
      } else {  // takes fewer registers
        v.bits[r] = 0;
#pragma unroll
        for (int j = 0; j < Scores::kCols; ++j) {
          const int x = Scores::col(j);
          if (x >= begin && x < end) v.bits[r] |= 1u << j;
        }
      }
    }
    return v;
  }
  // The columns before column x of the tile.
  static __device__ __forceinline__ uint32_t before(int x) {
    x = min(max(x - Scores::col(0), 0), 4 * Scores::kCols);
    const int count = x / 8 * 2 + min(x % 8, 2);  // a lane has two of eight
    return static_cast<uint32_t>((uint64_t{1} << count) - 1);
  }
  // Hidden elements become exactly 0, whatever stands there.
  __device__ __forceinline__ void keep(Scores& x) const {
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
#pragma unroll
      for (int j = 0; j < Scores::kCols; ++j) {
        if ((bits[r] >> j & 1) == 0) x.at(r, j) = 0.0f;
      }
    }
  }
};

// Values of this lane's columns 2 n and 2 n + 1.
__device__ __forceinline__ float2 column_pair(const float* columns, int n) {
  return *reinterpret_cast<const float2*>(columns + 8 * n + 2 * (lane_id() % 4));
}

// q . k becomes P. lse: base 2, of the accumulator's first column on.
template <class Scores>
__device__ __forceinline__ void weights(Scores& s, float scale_log2, const float* lse) {
#pragma unroll
  for (int n = 0; n < Scores::kCols / 2; ++n) {
    const float2 l = column_pair(lse, n);
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      s.at(r, 2 * n) = ptx::exp2(fmaf(s.at(r, 2 * n), scale_log2, -l.x));
      s.at(r, 2 * n + 1) = ptx::exp2(fmaf(s.at(r, 2 * n + 1), scale_log2, -l.y));
    }
  }
}

// dO . v becomes dS.
template <class Scores>
__device__ __forceinline__ void score_gradients(Scores& dp, const Scores& p, const float* delta) {
#pragma unroll
  for (int n = 0; n < Scores::kCols / 2; ++n) {
    const float2 d = column_pair(delta, n);
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      dp.at(r, 2 * n) = p.at(r, 2 * n) * (dp.at(r, 2 * n) - d.x);
      dp.at(r, 2 * n + 1) = p.at(r, 2 * n + 1) * (dp.at(r, 2 * n + 1) - d.y);
    }
  }
}

// The same as weights() with softcap and ALiBi; `slope_of_cap` gets the derivative of the capped
// score with respect to the score.
template <class Scores>
__device__ __forceinline__ void general_weights(Scores& s, Scores& slope_of_cap,
                                                const BackwardParams& p, const SequencePlace& at,
                                                int head, int first_key, int first_query,
                                                const float* lse) {
  float slope = 0.0f;
  if (p.alibi_slopes != nullptr) {
    slope = kLog2e * p.alibi_slopes[at.batch * p.alibi_batch + head];
  }
  const int diagonal = p.mask.diagonal(at.lengths()) + first_query - first_key;
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
#pragma unroll
    for (int j = 0; j < Scores::kCols; ++j) {
      float x = s.at(r, j) * p.scale;
      slope_of_cap.at(r, j) = 1.0f;
      if (p.softcap > 0.0f) {
        const float t = tanh_of(x / p.softcap);
        slope_of_cap.at(r, j) = 1.0f - t * t;
        x = p.softcap * t;
      }
      const int distance = diagonal + Scores::col(j) - Scores::row(r);
      x = kLog2e * x - slope * fabsf(static_cast<float>(distance));
      s.at(r, j) = ptx::exp2(x - lse[Scores::col(j)]);
    }
  }
}

}  // namespace tilewise::cuda
