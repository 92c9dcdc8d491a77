// The softmax of rows whose reference exponent hardly ever moves.
//
// Any reference gives the same softmax, as long as nothing overflows or vanishes: so the first keys
// of a row set it, keys under a mask's edge may move it, and for all others no maximum is taken. At
// the end out_of_range() says for which rows that did not go well: they are computed again with a
// reference that moves whenever it must.
//
// The largest weight of a row would be exactly 1 with the running maximum as reference; with
// another it is rounded to the element type on its way to the tensor core, while the row sum is
// not. On rows where one weight is nearly all of the sum that error would be all of the result's,
// so O is divided by a sum with that weight as the tensor core got it (weights_sum). Moves are by
// whole powers of two, which rounding does not notice.
#pragma once

#include "cuda/ptx/math.cuh"
#include "cuda/tile/rows.cuh"

namespace tilewise::cuda {

// Row sums below this keep weights in the element type's range, and O in fp32's for values up to
// 2^63.
template <DType kType>
__device__ __forceinline__ constexpr float largest_sum() {
  return kType == DType::kFp16 ? 0x1p15f : 0x1p64f;
}

template <DType kType, int kCount>
struct ReferenceSoftmax : RowSoftmax<kCount> {
  using Ops = RowOps<kCount>;
  using R = Rows<kCount>;
  using RowSoftmax<kCount>::reference;
  using RowSoftmax<kCount>::sum;

  R largest;  // the lane's largest weight

  // A row's first keys: `highest` of their exponents is the reference, their weight will be 1.
  __device__ __forceinline__ void start(const R& highest) {
    reference = highest;
    sum = Ops::zero();
    largest = Ops::zero();
  }
  // References that are below `highest` move to it, rounded up to a whole power of two from where
  // they were. Returns the factors of O.
  __device__ __forceinline__ R move(const R& highest) {
    const R old = reference;
    reference = Ops::map([&](int i) {
      return old.x[i] == -__builtin_inff() ? highest.x[i]
                                           : old.x[i] + ceilf(fmaxf(0.0f, highest.x[i] - old.x[i]));
    });
    const R factor = Ops::map([&](int i) {
      return old.x[i] == -__builtin_inff() ? 0.0f : ptx::exp2(old.x[i] - reference.x[i]);
    });
    sum = sum * factor;
    largest = largest * factor;
    return factor;
  }
  // Scores become weights, exp2(s * scale - reference).
  template <class Scores>
  __device__ __forceinline__ void exponentiate(Scores& s, float scale) {
    const R shift = this->shift();
    R even = Ops::zero(), odd = Ops::zero();
#pragma unroll
    for (int j = 0; j < Scores::kCols; j += 2) {
#pragma unroll
      for (int r = 0; r < kCount; ++r) {
        const float x = ptx::exp2(fmaf(s.at(r, j), scale, -shift.x[r]));
        const float y = ptx::exp2(fmaf(s.at(r, j + 1), scale, -shift.x[r]));
        s.at(r, j) = x;
        s.at(r, j + 1) = y;
        even.x[r] += x;
        odd.x[r] += y;
        // The order of floats >= 0 is that of their bits.
        largest.x[r] = __int_as_float(
            __vimax3_s32(__float_as_int(largest.x[r]), __float_as_int(x), __float_as_int(y)));
      }
    }
    sum = sum + (even + odd);
  }

  // From a lane's part of its rows to the rows.
  __device__ __forceinline__ void join_lanes() {
    sum = Ops::quad_sum(sum);
    largest = Ops::quad_max(largest);
  }
  // Rows, a bit each, whose sum (after join_lanes()) left the range; NaN is not in it.
  __device__ __forceinline__ uint32_t out_of_range() const {
    uint32_t rows = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) rows |= sum.x[i] < largest_sum<kType>() ? 0u : 1u << i;
    return rows;
  }
  // Gives up those of the rows, a bit each, that have seen no score above -inf: they leave the
  // range.
  __device__ __forceinline__ void give_up_without_reference(uint32_t rows) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (reference.x[i] == -__builtin_inff() && (rows >> i & 1) != 0)
        sum.x[i] = __builtin_nanf("");
    }
  }
  // After join_lanes(): the factors of O, and the row's lse.
  __device__ __forceinline__ R finalize(R* lse) const {
    RowSoftmax<kCount> row;
    row.reference = reference;
    row.sum = sum;
    row.finalize(lse);
    row.sum = weights_sum();
    R unused;
    return row.finalize(&unused);
  }

 private:
  // The row sum with its largest weight as the tensor core got it.
  __device__ __forceinline__ R weights_sum() const {
    return Ops::map([&](int i) {
      return sum.x[i] + (ptx::unpack<kType>(ptx::pack<kType>(largest.x[i], 0.0f)).x - largest.x[i]);
    });
  }
};

// The highest exponents of this lane's part of each row, from four strands; NaN is passed over.
template <class Scores>
__device__ __forceinline__ Rows<Scores::kRows> highest_exponents(const Scores& s, float scale) {
  constexpr int kStrands = 4;
  static_assert(Scores::kCols % kStrands == 0);
  Rows<Scores::kRows> highest;
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
    float x[kStrands];
#pragma unroll
    for (int j = 0; j < kStrands; ++j) x[j] = s.at(r, j);
#pragma unroll
    for (int j = kStrands; j < Scores::kCols; ++j) {
      x[j % kStrands] = fmaxf(x[j % kStrands], s.at(r, j));
    }
    highest.x[r] = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])) * scale;
  }
  return RowOps<Scores::kRows>::quad_max(highest);
}

}  // namespace tilewise::cuda
