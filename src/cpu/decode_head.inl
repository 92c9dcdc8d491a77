// One kv head of the decode: scores, softmax and output of a block of keys. Included once per
// instruction set.
#include "cpu/decode_softmax.inl"

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

// All rows of one kv head while it goes through a chunk, a block of keys at a time.
template <DType kType, int kRows>
struct Head : HeadSoftmax<kType, kRows> {
  using S = HeadSoftmax<kType, kRows>;
  using T = Tile<kRows>;
  using E = Elements<kType>;
  using P = Products<kType>;
  static constexpr int kStepVecs = S::kStepVecs, kSteps = S::kSteps, kBlock = S::kBlock;
  using S::at, S::kv_head, S::p, S::partial, S::rows, S::scratch;
  using S::bias_lanes, S::transform, S::weigh;

  int64_t q_step, o_step, k_row, v_row;
  PairCount pairs{0}, pairs_v{0};
  const char *k, *v;  // key 0 of the sequence
  float *queries, *o;

  TILEWISE_HD void start(const DecodeParams& params, const DecodeTask& task, DecodeScratch& s,
                         int head) {
    p = &params;
    scratch = &s;
    at = task.sequence;
    kv_head = task.kv_head + head;
    rows = static_cast<int>(at.n.q * p->group);
    q_step =
        (p->head_dim + kDecodePad - 1) / kDecodePad * kDecodePad / kPairElements * P::kQueryPair;
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
      for (; x < pairs.full; ++x) {
        P::store_query(out + x * P::kQueryPair, P::key(in + x * E::kPairBytes));
      }
      if (pairs.tail > 0) {
        P::store_query(out + x * P::kQueryPair, P::key(in + x * E::kPairBytes, pairs.tail));
      }
    }
    for (int r = 0; r < rows; ++r) {
      const Span seen = p->mask.keys_of(r / p->group, at.n);
      scratch->begin[r] = seen.begin;
      scratch->end[r] = seen.end;
    }
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
    if constexpr (P::kInWords) round_weights<Simd>(steps * kStepVecs);
    accumulate(steps, advance * v_row, first_v, next_k, advance * k_row);
  }

  // Weights -> words of two keys (KeyPair), in place.
  template <class W>
  TILEWISE_HD void round_weights(int vecs) {
    constexpr int kVecs = kRows < kLanes ? 1 : 2;
    for (int i = 0; i < vecs; i += kVecs) {
      float* s = scratch->scores + i * kLanes;
      auto* words = reinterpret_cast<typename W::Word*>(s);
      if constexpr (kVecs == 1) {
        W::store_halves_paired(words, Simd::load(s));
      } else {
        W::store_words(words, W::pair(Simd::load(s), Simd::load(s + kLanes)));
      }
    }
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
    for (; x < pairs.full; ++x) {
      P::multiply(P::query(q + x * P::kQueryPair), P::key(row + x * E::kPairBytes), a, b);
    }
    if (pairs.tail > 0) {
      P::multiply(P::query(q + x * P::kQueryPair), P::key(row + x * E::kPairBytes, pairs.tail), a,
                  b);
    }
    return sum_of(Simd::add(a, b));
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
};

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
