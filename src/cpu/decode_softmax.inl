// The softmax of one kv head of the decode: raw scores of a block of keys -> weights. Included once
// per instruction set.
#include "core/online_softmax.h"
#include "cpu/decode_output.inl"
#include "cpu/row_vector.inl"

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

using RowSoftmax = OnlineSoftmax<RowVec, RowOps>;

// The lanes of v that are congruent modulo kRows, joined by op, in each of them.
template <int kRows, int kStep = kLanes / 2, class Op>
TILEWISE_HD Vec fold(Vec v, Op op) {
  if constexpr (kStep >= kRows) {
    return fold<kRows, kStep / 2>(op(v, Simd::swap<kStep>(v)), op);
  } else {
    return v;
  }
}
TILEWISE_HD float sum_of(Vec v) {
  float lanes[kLanes];
  Simd::store(lanes, fold<1>(v, [](Vec a, Vec b) { return Simd::add(a, b); }));
  return lanes[0];
}

// Scores lie as (key, row), rows padded to kRows; nothing of a padded row is read by another or
// stored.
template <DType kType, int kRows>
struct HeadSoftmax {
  using T = Tile<kRows>;
  using E = Elements<kType>;
  static constexpr int kRowVecs = kRows < kLanes ? 1 : kRows / kLanes;
  // Vectors of scores in a step, a step's keys, and the steps of a block.
  static constexpr int kStepVecs = T::kStepKeys * kRows / kLanes;
  static constexpr int kSteps = (kRows == 1 && E::kSize == 4 ? 16 : 32) / T::kStepKeys;
  static constexpr int kBlock = kSteps * T::kStepKeys;
  static_assert(kBlock <= kDecodeBlock && kRows <= kDecodeRows);

  const DecodeParams* p;
  DecodeScratch* scratch;  // scores and factors are used by one head at a time
  Sequence at;
  int64_t kv_head;
  int rows;  // without padding
  DecodePartial* partial;
  RowSoftmax softmax[kRowVecs];  // lane i of vector m: row (m * kLanes + i) % kRows; a sum is
                                 // spread over the lanes of its row

  // Raw dot products -> scores in base 2. `key_of(tile)` is the first key of a tile relative to the
  // origin of bias_lanes().
  template <class KeyOf>
  TILEWISE_HD void transform(int vecs, KeyOf key_of) {
    const Vec scale = Simd::set(p->softcap > 0 ? p->scale / p->softcap : p->scale * kLog2e);
    const Vec cap = Simd::set(p->softcap * kLog2e);
    for (int i = 0; i < vecs; ++i) {
      float* at = scratch->scores + i * kLanes;
      Vec s = Simd::mul(Simd::load(at), scale);
      if (p->softcap > 0) s = Simd::mul(cap, tanh(s));
      if (p->alibi_slopes != nullptr) {
        const int m = i % kRowVecs * kLanes;
        const Vec key = Simd::add(Simd::load(scratch->lane_key), Simd::set(key_of(i / kRowVecs)));
        const Vec distance = Simd::abs(Simd::sub(Simd::load(scratch->position + m), key));
        s = Simd::fma(Simd::load(scratch->slope + m), distance, s);
      }
      Simd::store(at, s);
    }
  }

  // Per lane: the slope and position of its row, and its key relative to the first of its tile.
  // Positions are relative to the key `origin`, so that they stay exact in fp32.
  TILEWISE_HD void bias_lanes(int64_t origin, int64_t stream) {
    if (p->alibi_slopes == nullptr) return;
    const float* slopes = p->alibi_slopes + at.batch * p->alibi_batch_stride + kv_head * p->group;
    for (int i = 0; i < kRowVecs * kLanes; ++i) {
      const int r = i % kRows < rows ? i % kRows : 0;
      scratch->slope[i] = -kLog2e * slopes[r % p->group];
      scratch->position[i] = static_cast<float>(r / p->group + p->mask.diagonal(at.n) - origin);
    }
    for (int i = 0; i < kLanes; ++i) {
      scratch->lane_key[i] = static_cast<float>(T::offset(i / T::kTileRows, 1, stream));
    }
  }

  // Scores -> weights, in place; scratch->factor is what O must be multiplied by.
  TILEWISE_HD void weigh(int vecs) {
    const auto max = [](Vec a, Vec b) { return Simd::max(a, b); };
    float* s = scratch->scores;
    Vec most[kRowVecs], shift[kRowVecs];
    for (int m = 0; m < kRowVecs; ++m) most[m] = RowOps::negative_infinity().v;
    for (int i = 0; i < vecs; i += kRowVecs) {
      for (int m = 0; m < kRowVecs; ++m) {
        most[m] = Simd::max(Simd::load(s + (i + m) * kLanes), most[m]);  // passes over NaN
      }
    }
    for (int m = 0; m < kRowVecs; ++m) {
      const Vec factor = softmax[m].update({fold<kRows>(most[m], max)}).v;
      float lanes[kLanes];
      Simd::store(lanes, factor);
      for (int i = 0; i < kLanes && i < kRows; ++i) scratch->factor[m * kLanes + i] = lanes[i];
      shift[m] = softmax[m].shift().v;
    }
    for (int i = 0; i < vecs; i += kStepVecs) {
      Vec w[kStepVecs];
      TILEWISE_UNROLL for (int n = 0; n < kStepVecs; ++n) {
        w[n] = Simd::sub(Simd::load(s + (i + n) * kLanes), shift[n % kRowVecs]);
      }
      exp2_in_place<kStepVecs>(w);
      TILEWISE_UNROLL for (int n = 0; n < kStepVecs; ++n) {
        softmax[n % kRowVecs].sum = softmax[n % kRowVecs].sum + RowVec{w[n]};
        Simd::store(s + (i + n) * kLanes, w[n]);
      }
    }
  }

  TILEWISE_HD void store_softmax() {
    for (int m = 0; m < kRowVecs; ++m) {
      float reference[kLanes], sum[kLanes];
      Simd::store(reference, softmax[m].reference.v);
      Simd::store(sum, fold<kRows>(softmax[m].sum.v, [](Vec a, Vec b) { return Simd::add(a, b); }));
      for (int i = 0; i < kLanes && m * kLanes + i < kRows; ++i) {
        partial->reference[m * kLanes + i] = reference[i];
        partial->sum[m * kLanes + i] = sum[i];
      }
    }
  }
};

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
