// The softmax of the decode: raw scores of a block of keys -> weights. Included once per
// instruction set.
#include "core/online_softmax.h"
#include "cpu/decode_output.inl"
#include "cpu/row_vector.inl"

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

using RowSoftmax = OnlineSoftmax<RowVec, RowOps>;

// The lanes of v that are congruent modulo kWidth, joined by op, in each of them.
template <int kWidth, int kStep = kLanes / 2, class Op>
TILEWISE_HD Vec fold(Vec v, Op op) {
  if constexpr (kStep >= kWidth) {
    return fold<kWidth, kStep / 2>(op(v, Simd::swap<kStep>(v)), op);
  } else {
    return v;
  }
}

// The sum of kCount vectors `step` floats apart: i with i + kCount / 2 first, as fold() goes on. So
// the keys of a block are added in an order in which the width of vectors and scores has no part.
template <int kCount>
TILEWISE_HD Vec sum_halves(const float* p, int step) {
  if constexpr (kCount == 1) {
    return Simd::load(p);
  } else {
    return Simd::add(sum_halves<kCount / 2>(p, 2 * step),
                     sum_halves<kCount / 2>(p + step, 2 * step));
  }
}

// What a kernel's rows need to know of scores besides q . k. The scores of a block lie as (keys,
// width): width is a power of two, and a key's rows stand side by side.
struct ScoreRule {
  float scale, softcap;  // before the softcap, and its factor; softcap 0: off
  bool alibi;

  explicit ScoreRule(const DecodeParams& p)
      : scale(p.softcap > 0 ? p.scale / p.softcap : p.scale * kLog2e),
        softcap(p.softcap * kLog2e),
        alibi(p.alibi_slopes != nullptr) {}

  // Raw dot products -> scores in base 2, of a vector at float i of the block.
  TILEWISE_HD Vec apply(Vec s, const DecodeScratch& scratch, int i, int width) const {
    s = Simd::mul(s, Simd::set(scale));
    if (softcap > 0) s = Simd::mul(Simd::set(softcap), tanh(s));
    if (alibi) {
      const int m = i % (width < kLanes ? kLanes : width);
      const float key = static_cast<float>(i / width);
      const Vec at = Simd::add(Simd::load(scratch.lane_key), Simd::set(key));
      const Vec distance = Simd::abs(Simd::sub(Simd::load(scratch.position + m), at));
      s = Simd::fma(Simd::load(scratch.slope + m), distance, s);
    }
    return s;
  }
};

// Scores -> weights, in place, for rows of kWidth lanes of `width`: all of them, or a vector.
// Returns nothing; scratch.factor is what O must be multiplied by.
template <int kWidth>
TILEWISE_HD void weigh(DecodeScratch& scratch, int width) {
  constexpr int kVecs = kDecodeBlock * kWidth / kLanes;  // of a column
  constexpr int kAtOnce = kVecs < 4 ? kVecs : 4;
  const int step = width < kLanes ? kLanes : width;
  for (int column = 0; column < width; column += kLanes) {
    float* s = scratch.scores + column;
    Vec most = RowOps::negative_infinity().v;
    for (int i = 0; i < kVecs; ++i) most = Simd::max(Simd::load(s + i * step), most);  // not NaN
    most = fold<kWidth>(most, [](Vec a, Vec b) { return Simd::max(a, b); });
    RowSoftmax softmax{{Simd::load(scratch.reference + column)},
                       {Simd::load(scratch.sum + column)}};
    Simd::store(scratch.factor + column, softmax.update({most}).v);
    const Vec shift = softmax.shift().v;
    for (int i = 0; i < kVecs; i += kAtOnce) {
      Vec w[kAtOnce];
      TILEWISE_UNROLL for (int n = 0; n < kAtOnce; ++n) {
        w[n] = Simd::sub(Simd::load(s + (i + n) * step), shift);
      }
      exp2_in_place<kAtOnce>(w);
      TILEWISE_UNROLL for (int n = 0; n < kAtOnce; ++n) Simd::store(s + (i + n) * step, w[n]);
    }
    const Vec block =
        fold<kWidth>(sum_halves<kVecs>(s, step), [](Vec a, Vec b) { return Simd::add(a, b); });
    Simd::store(scratch.reference + column, softmax.reference.v);
    Simd::store(scratch.sum + column, (softmax.sum + RowVec{block}).v);
  }
}

TILEWISE_HD void weigh_any(DecodeScratch& scratch, int width) {
  if (width >= kLanes) return weigh<kLanes>(scratch, width);
  if (width == 1) return weigh<1>(scratch, width);
  if (width == 2) return weigh<2>(scratch, width);
  if constexpr (kLanes > 4) {
    if (width == 4) return weigh<4>(scratch, width);
  }
  if constexpr (kLanes > 8) weigh<8>(scratch, width);
}

// Weights -> words of two keys, in place: a word stands where the earlier key's weight was.
template <class W>
TILEWISE_HD void round_weights(float* weights, int width) {
  for (int i = 0; i < kDecodeBlock * width; i += 2 * width) {
    if (width < kLanes) {
      W::store_halves_paired(reinterpret_cast<typename W::Word*>(weights + i),
                             Simd::load(weights + i));
      continue;
    }
    for (int c = i; c < i + width; c += kLanes) {
      W::store_words(reinterpret_cast<typename W::Word*>(weights + c),
                     W::pair(Simd::load(weights + c), Simd::load(weights + c + width)));
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
