// The steps of a block of keys, as the ablation's two ways of sharing them need them.
#pragma once

#include "cuda/common/scores.cuh"
#include "cuda/tile/product.cuh"

namespace tilewise::ablation {

using namespace tilewise::cuda;

// s = q k^T for the rows [first_row, ...) of q and all rows of k.
template <DType kType, int kRowAtoms, int kColAtoms, int kRows, int kCols>
__device__ __forceinline__ void multiply_transposed(Accumulator<kRowAtoms, kColAtoms>& s,
                                                    const SmemTile<kRows, kCols>& q, int first_row,
                                                    const SmemTile<8 * kColAtoms, kCols>& k) {
  s.clear();
  product<kType, kCols / 16>(s, LeftRows(q, first_row), RightTransposed(k, 0));
}

// o += p v, p rounded to the element type.
template <DType kType, int kRowAtoms, int kKeyAtoms, int kColAtoms>
__device__ __forceinline__ void accumulate(Accumulator<kRowAtoms, kColAtoms>& o,
                                           const Accumulator<kRowAtoms, kKeyAtoms>& p,
                                           const SmemTile<8 * kKeyAtoms, 8 * kColAtoms>& v) {
  using Value = SmemTile<8 * kKeyAtoms, 8 * kColAtoms>;
  product<kType, kKeyAtoms / 2>(o, LeftRegisters<kType, Accumulator<kRowAtoms, kKeyAtoms>>{p},
                                RightRows<1, Value>(v, 0, 0));
}

// Scores become weights, and the lane's part of the row sums grows by them.
template <class Scores>
__device__ __forceinline__ void exponentiate(Scores& s, Exponents exponents,
                                             RowSoftmax<Scores::kRows>& softmax) {
  const Rows<Scores::kRows> shift = softmax.shift();
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
#pragma unroll
    for (int j = 0; j < Scores::kCols; ++j) {
      s.at(r, j) = ptx::exp2(fmaf(s.at(r, j), exponents.scale, -shift.x[r]));
      softmax.sum.x[r] += s.at(r, j);
    }
  }
}

}  // namespace tilewise::ablation
