// What happens to a tile of scores between the two products.
#pragma once

#include "core/numeric.h"
#include "cuda/common/place.cuh"
#include "cuda/tile/product.cuh"
#include "cuda/tile/rows.cuh"

namespace tilewise::cuda {

// The exponent (in base 2) of a score is this times it; positive.
struct Exponents {
  float scale;
};

// 1 - 2 / (e^2x + 1), within 2.4e-7 of tanh.
__device__ __forceinline__ float tanh_of(float x) {
  return 1.0f - __fdividef(2.0f, ptx::exp2(2.0f * kLog2e * x) + 1.0f);
}

// Scores stay q . k when all that follows is a positive scale; else they become base-2 exponents:
// scale, softcap, ALiBi, in this order.
template <class Scores, class At>
__device__ __forceinline__ Exponents transform_scores(Scores& s, const ForwardParams& p,
                                                      const At& at, int first_row, int key) {
  if (p.plain) return {p.scale * kLog2e};
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
    const int row = min(first_row + Scores::row(r), at.rows - 1);
    float slope = 0.0f, from_diagonal = 0.0f;
    if (p.alibi_slopes != nullptr) {
      slope = kLog2e * p.alibi_slopes[at.batch * p.alibi_batch + at.head(p, row)];
      from_diagonal = static_cast<float>(at.query(p, row) + p.mask.diagonal(at.lengths()) - key);
    }
#pragma unroll
    for (int j = 0; j < Scores::kCols; ++j) {
      float x = s.at(r, j) * p.scale;
      if (p.softcap > 0.0f) x = p.softcap * tanh_of(x / p.softcap);
      s.at(r, j) = kLog2e * x - slope * fabsf(from_diagonal - static_cast<float>(Scores::col(j)));
    }
  }
  return {1.0f};
}

// Scores of keys that a row does not see become -inf: those beyond its last key, then those before
// its first, each only in warps that have one.
template <bool kBanded, class Scores, class At>
__device__ __forceinline__ void hide_keys(Scores& s, const ForwardParams& p, const At& at,
                                          int first_row, int key) {
  int begin[Scores::kRows], end[Scores::kRows];  // as numbers of columns from the lane's first on
  bool cut_left = false, cut_right = false;
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
    BasicSpan<int> seen = {0, at.n_k};
    if constexpr (kBanded) {
      seen = p.mask.keys_of(at.query(p, first_row + Scores::row(r)), at.lengths());
    }
    cut_left |= seen.begin > key;
    cut_right |= seen.end < key + 4 * Scores::kCols;
    begin[r] = seen.begin - key - Scores::col(0);
    end[r] = seen.end - key - Scores::col(0);
  }
  const auto hide = [&](const auto& hidden) {
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
#pragma unroll
      for (int j = 0; j < Scores::kCols; ++j) {
        if (hidden(8 * (j / 2) + j % 2, r)) s.at(r, j) = -__builtin_inff();
      }
    }
  };
  if (__any_sync(0xffffffffu, cut_right)) hide([&](int x, int r) { return x >= end[r]; });
  if (kBanded && __any_sync(0xffffffffu, cut_left)) {
    hide([&](int x, int r) { return x < begin[r]; });
  }
}

// The highest exponents of this lane's part of each row; NaN is passed over.
template <class Scores>
__device__ __forceinline__ Rows<Scores::kRows> row_max(const Scores& s, Exponents exponents) {
  Rows<Scores::kRows> most;
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
    float x = s.at(r, 0);
#pragma unroll
    for (int j = 1; j < Scores::kCols; ++j) x = fmaxf(x, s.at(r, j));
    most.x[r] = x * exponents.scale;
  }
  return most;
}

// P as a left operand: scores become weights, 16 keys at a time, when they are asked for, so that
// exponentials stand beside products; and the lane's part of the row sums grows by them. The
// accumulator layout of P is the layout of a left operand, so P never leaves the registers.
template <DType kType, class Scores>
struct Weights {
  Scores& s;
  const Exponents exponents;
  RowSoftmax<Scores::kRows>& softmax;
  const Rows<Scores::kRows> shift = softmax.shift();

  template <int kRowAtoms>
  __device__ __forceinline__ void operator()(uint32_t (&a)[kRowAtoms][4], int step) const {
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
#pragma unroll
      for (int j = 4 * step; j < 4 * step + 4; ++j) {
        s.at(r, j) = ptx::exp2(fmaf(s.at(r, j), exponents.scale, -shift.x[r]));
        softmax.sum.x[r] += s.at(r, j);
      }
    }
    LeftRegisters<kType, Scores>{s}(a, step);
  }
};

// x *= y, element by element.
template <class Scores>
__device__ __forceinline__ void multiply(Scores& x, const Scores& y) {
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
#pragma unroll
    for (int j = 0; j < Scores::kCols; ++j) x.at(r, j) *= y.at(r, j);
  }
}

template <class Output, class Factors>
__device__ __forceinline__ void rescale(Output& o, const Factors& factor) {
  // Most references do not move: a quarter of the instructions beside the products.
  bool any = false;
#pragma unroll
  for (int r = 0; r < Output::kRows; ++r) any |= factor.x[r] != 1.0f;
  if (!__any_sync(0xffffffffu, any)) return;
#pragma unroll
  for (int r = 0; r < Output::kRows; ++r) {
#pragma unroll
    for (int j = 0; j < Output::kCols; ++j) o.at(r, j) *= factor.x[r];
  }
}

// The sign bit of an element of the pair is set iff that element is infinite or NaN: the exponent
// is all ones, so that its lowest bit added carries into the sign.
template <DType kType>
__device__ __forceinline__ uint32_t not_finite(uint32_t pair) {
  constexpr uint32_t kExponent = kType == DType::kBf16 ? 0x7f807f80u : 0x7c007c00u;
  constexpr uint32_t kLowest = kType == DType::kBf16 ? 0x00800080u : 0x04000400u;
  return ((pair & kExponent) + kLowest) & 0x80008000u;
}

// Such an element of the pair becomes 0.
template <DType kType>
__device__ __forceinline__ uint32_t finite_or_zero(uint32_t pair) {
  const uint32_t bad = not_finite<kType>(pair) >> 15;  // 1 in each such half
  return pair & ~(bad * 0xffffu);
}

// 0 * inf is NaN, so a value that is not finite would reach rows that do not see its key. Those
// among this thread's chunks become 0; returns whether there was one, for mark_outputs().
template <DType kType, class Copy>
__device__ __forceinline__ bool hide_values(typename Copy::Tile& v) {
  uint32_t any = 0;
  Copy::for_own(v, [&](const uint4& x) {
    any |= not_finite<kType>(x.x) | not_finite<kType>(x.y) | not_finite<kType>(x.z) |
           not_finite<kType>(x.w);
  });
  if (any == 0) return false;
  Copy::for_own(v, [](uint4& x) {
    x = {finite_or_zero<kType>(x.x), finite_or_zero<kType>(x.y), finite_or_zero<kType>(x.z),
         finite_or_zero<kType>(x.w)};
  });
  return true;
}

// Makes NaN of what rows that see a hidden value must show. Rare, and slow. store(row, x) stores
// it.
template <DType kType, int kThreads, class Store>
__device__ void mark_outputs(const ForwardParams& p, const Place& at, int key_begin, int key_end,
                             const Store& store) {
  for (int row = static_cast<int>(threadIdx.x); row < at.rows; row += kThreads) {
    const int q = at.query(p, row);
    for (int key = key_begin; key < min(key_end, at.n_k); ++key) {
      if (!p.mask.visible(q, key, at.lengths())) continue;
      const uint16_t* v = at.v_row(p, key);
      for (int x = 0; x < p.v.dim; ++x) {
        if (not_finite<kType>(v[x]) != 0) store(row, x);
      }
    }
  }
}

}  // namespace tilewise::cuda
