// One kv head of the decode: scores, softmax and output of a block of keys. Included once per
// instruction set.
#include "core/online_softmax.h"
#include "cpu/decode_tiles.inl"
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

// All rows of one kv head while it goes through a chunk, a block of keys at a time. Scores lie as
// (key, row), rows padded to kRows; nothing of a padded row is read by another or stored.
template <DType kType, int kRows>
struct Head {
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
  int64_t q_step, o_step, k_row, v_row;
  PairCount pairs{0}, pairs_v{0};
  const char *k, *v;  // key 0 of the sequence
  float *queries, *o;
  DecodePartial* partial;
  RowSoftmax softmax[kRowVecs];  // lane i of vector m: row (m * kLanes + i) % kRows; a sum is
                                 // spread over the lanes of its row

  TILEWISE_HD void start(const DecodeParams& params, const DecodeTask& task, DecodeScratch& s,
                         int head) {
    p = &params;
    scratch = &s;
    at = task.sequence;
    kv_head = task.kv_head + head;
    rows = static_cast<int>(at.n.q * p->group);
    q_step = (p->head_dim + kDecodePad - 1) / kDecodePad * kDecodePad;
    o_step = p->padded_v();
    k_row = p->k.seqlen_stride * E::kSize;
    v_row = p->v.seqlen_stride * E::kSize;
    pairs = PairCount(p->head_dim);
    pairs_v = PairCount(p->head_dim_v);
    k = base(p->k);
    v = base(p->v);
    partial = reinterpret_cast<DecodePartial*>(reinterpret_cast<char*>(task.partial) +
                                               head * task.stride);
    o = partial->o();
    queries = s.queries + head * kRows * q_step;
    load_queries();
    for (int64_t i = 0; i < kRows * o_step; ++i) o[i] = 0.0f;
  }

  TILEWISE_HD const char* base(const DecodeTensor& x) const {
    return static_cast<const char*>(x.data) +
           E::kSize *
               (at.batch * x.batch_stride + at.k_start * x.seqlen_stride + kv_head * x.head_stride);
  }

  // Also what the masks and biases of the rows need.
  TILEWISE_HD void load_queries() {
    const GroupedRows q_rows{p->q.seqlen_stride, p->q.head_stride, p->group};
    const char* q = static_cast<const char*>(p->q.data) +
                    E::kSize * (at.batch * p->q.batch_stride + at.q_start * p->q.seqlen_stride +
                                kv_head * p->group * p->q.head_stride);
    for (int r = 0; r < kRows; ++r) {
      float* out = queries + r * q_step;
      if (r >= rows) {
        for (int64_t i = 0; i < q_step; ++i) out[i] = 0.0f;
        continue;
      }
      const char* in = q + q_rows.offset(r) * E::kSize;
      int x = 0;
      for (; x < pairs.full; ++x)
        store_pair(out + x * kPairElements, E::load(in + x * E::kPairBytes));
      if (pairs.tail > 0) {
        store_pair(out + x * kPairElements, E::load(in + x * E::kPairBytes, pairs.tail));
      }
    }
    for (int r = 0; r < rows; ++r) {
      const Span seen = p->mask.keys_of(r / p->group, at.n);
      scratch->begin[r] = seen.begin;
      scratch->end[r] = seen.end;
    }
  }
  TILEWISE_HD static void store_pair(float* out, Pair x) {
    Simd::store(out, x.a);
    Simd::store(out + kLanes, x.b);
  }

  // `steps` steps from `key` on, `advance` keys apart; the streams are `stream` keys apart.
  // Positions are counted from the key `origin`. Prefetches the keys at `next`.
  __attribute__((noinline)) void block(int64_t key, int steps, int64_t stream, int64_t advance,
                                       int64_t origin, const char* next) {
    KeyRows k_at{k + key * k_row, k_row, stream * k_row},
        v_at{v + key * v_row, v_row, stream * v_row};
    const KeyRows first_v = v_at, next_k{next, k_row, stream * k_row};
    float* s = scratch->scores;
    for (int step = 0; step < steps; ++step) {
      TILEWISE_UNROLL for (int tile = 0; tile < T::kTilesPerStep; ++tile) {
        const KeyRows k_tile{k_at.first + tile * T::kSegments * k_at.stream, k_row, k_at.stream};
        const KeyRows v_tile{v_at.first + tile * T::kSegments * v_at.stream, v_row, v_at.stream};
        TILEWISE_UNROLL for (int r = 0; r < T::kRowTiles; ++r) {
          const float* q = queries + r * T::kTileRows * q_step;
          if constexpr (kRows == 1) {
            score_one_row<kType>(q, k_tile, v_tile, pairs, s);
          } else if (r == 0) {
            score_tile<kType, kRows, true>(q, q_step, k_tile, v_tile, pairs, s);
          } else {
            score_tile<kType, kRows, false>(q, q_step, k_tile, v_tile, pairs, s);
          }
          s += kLanes;
        }
      }
      k_at.first += advance * k_row;
      v_at.first += advance * v_row;
    }
    bias_lanes(origin, stream);
    const float first = static_cast<float>(key - origin);
    transform(steps * kStepVecs, [&](int tile) {
      return first + static_cast<float>(tile / T::kTilesPerStep * advance +
                                        tile % T::kTilesPerStep * T::kSegments * stream);
    });
    weigh(steps * kStepVecs);
    accumulate(steps, advance * v_row, first_v, next_k, advance * k_row);
  }

  TILEWISE_HD void accumulate(int steps, int64_t step_bytes, const KeyRows& v_at,
                              const KeyRows& next, int64_t next_step) {
    using Out = OutputTile<kRows>;
    for (int r = 0; r < kRows; r += Out::kTileRows) {
      float* out = o + r * o_step;
      const float* f = scratch->factor + r;
      const float* w = scratch->scores + r;
      int x = 0;
      for (; x + Out::kPairs <= pairs_v.full; x += Out::kPairs) {
        accumulate_tile<kType, kRows, Out::kPairs, false>(out, o_step, f, w, steps, step_bytes,
                                                          v_at, next, next_step, x, 0);
      }
      for (; x < pairs_v.full; ++x) {
        accumulate_tile<kType, kRows, 1, false>(out, o_step, f, w, steps, step_bytes, v_at, next,
                                                next_step, x, 0);
      }
      if (pairs_v.tail > 0) {
        accumulate_tile<kType, kRows, 1, true>(out, o_step, f, w, steps, step_bytes, v_at, next,
                                               next_step, x, pairs_v.tail);
      }
    }
  }

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

  // Keys that a row may not see: one at a time, and nothing of a hidden key is read.
  __attribute__((noinline)) void edge_block(int64_t begin, int keys) {
    const int steps = (keys + T::kStepKeys - 1) / T::kStepKeys;
    for (int j = 0; j < keys; ++j) {
      for (int r = 0; r < rows; ++r) {
        if (sees(r, begin + j)) scratch->scores[j * kRows + r] = dot(r, begin + j);
      }
    }
    bias_lanes(begin, T::kRun);
    transform(steps * kStepVecs, [](int tile) { return static_cast<float>(tile * T::kKeys); });
    for (int j = 0; j < steps * T::kStepKeys; ++j) {
      for (int r = 0; r < kRows; ++r) {
        if (j >= keys || r >= rows || !sees(r, begin + j)) {
          scratch->scores[j * kRows + r] = -__builtin_inff();
        }
      }
    }
    weigh(steps * kStepVecs);
    for (int r = 0; r < rows; ++r) accumulate_row(r, begin, keys);
  }
  TILEWISE_HD bool sees(int r, int64_t key) const {
    return key >= scratch->begin[r] && key < scratch->end[r];
  }

  TILEWISE_HD float dot(int r, int64_t key) const {
    const float* q = queries + r * q_step;
    const char* row = k + key * k_row;
    Vec a = Simd::zero(), b = Simd::zero();
    int x = 0;
    for (; x < pairs.full; ++x)
      dot_pair(a, b, q + x * kPairElements, E::load(row + x * E::kPairBytes));
    if (pairs.tail > 0) {
      dot_pair(a, b, q + x * kPairElements, E::load(row + x * E::kPairBytes, pairs.tail));
    }
    return sum_of(Simd::add(a, b));
  }
  TILEWISE_HD static void dot_pair(Vec& a, Vec& b, const float* q, Pair key) {
    a = Simd::fma(Simd::load(q), key.a, a);
    b = Simd::fma(Simd::load(q + kLanes), key.b, b);
  }

  TILEWISE_HD void accumulate_row(int r, int64_t begin, int keys) {
    for (int x = 0; x < pairs_v.full + (pairs_v.tail > 0); ++x) {
      float* out = o + r * o_step + x * kPairElements;
      const Vec f = Simd::broadcast(scratch->factor + r);
      Vec a = Simd::mul(f, Simd::load(out)), b = Simd::mul(f, Simd::load(out + kLanes));
      for (int j = 0; j < keys; ++j) {
        if (!sees(r, begin + j)) continue;
        const char* at = v + (begin + j) * v_row + x * E::kPairBytes;
        const Pair value = x < pairs_v.full ? E::load(at) : E::load(at, pairs_v.tail);
        const Vec w = Simd::broadcast(scratch->scores + j * kRows + r);
        a = Simd::fma(w, value.a, a);
        b = Simd::fma(w, value.b, b);
      }
      Simd::store(out, a);
      Simd::store(out + kLanes, b);
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
