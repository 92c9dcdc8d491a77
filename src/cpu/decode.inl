// The decode kernel. Included once per instruction set.
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

// One chunk of keys for all rows of a kv head. Scores lie as (key, row), rows padded to kRows;
// nothing of a padded row is read by another or stored.
template <DType kType, int kRows>
struct Chunk {
  using T = Tile<kRows>;
  using E = Elements<kType>;
  static constexpr int kRowVecs = kRows < kLanes ? 1 : kRows / kLanes;
  // Vectors of scores in a step, a step's keys, and the steps of a block.
  static constexpr int kStepVecs = T::kStepKeys * kRows / kLanes;
  static constexpr int kSteps = 32 / T::kStepKeys;
  static constexpr int kBlock = kSteps * T::kStepKeys;
  static_assert(kBlock <= kDecodeBlock && kRows <= kDecodeRows);

  const DecodeParams& p;
  const DecodeTask& task;
  DecodeScratch& scratch;
  const GroupedRows q_rows;
  const int rows;  // without padding
  const int64_t q_step, o_step;
  const PairCount pairs, pairs_v;
  const char *k, *v;  // key 0 of the sequence
  const int64_t k_row, v_row;
  float* const o;
  RowSoftmax softmax[kRowVecs];  // lane i of vector m: row (m * kLanes + i) % kRows; a sum is
                                 // spread over the lanes of its row

  TILEWISE_HD Chunk(const DecodeParams& params, const DecodeTask& t, DecodeScratch& s)
      : p(params),
        task(t),
        scratch(s),
        q_rows{p.q.seqlen_stride, p.q.head_stride, p.group},
        rows(static_cast<int>(t.sequence.n.q * p.group)),
        q_step((p.head_dim + kDecodePad - 1) / kDecodePad * kDecodePad),
        o_step(p.padded_v()),
        pairs(p.head_dim),
        pairs_v(p.head_dim_v),
        k(base(p.k)),
        v(base(p.v)),
        k_row(p.k.seqlen_stride * E::kSize),
        v_row(p.v.seqlen_stride * E::kSize),
        o(t.partial->o()) {}

  TILEWISE_HD const char* base(const DecodeTensor& x) const {
    return static_cast<const char*>(x.data) +
           E::kSize * (task.sequence.batch * x.batch_stride +
                       task.sequence.k_start * x.seqlen_stride + task.kv_head * x.head_stride);
  }

  TILEWISE_HD void run() {
    load_queries();
    for (int64_t i = 0; i < kRows * o_step; ++i) o[i] = 0.0f;
    const TileRange all = p.mask.kv_range(0, task.sequence.n.q, task.sequence.n, 1);
    const int64_t begin = clamp(all.begin), end = clamp(all.end);
    const int64_t full_begin = clamp(all.full_begin), full_end = clamp(all.full_end);
    some_see(begin, full_begin);
    some_see(all_see(full_begin, full_end), end);
    store_softmax();
  }

  TILEWISE_HD int64_t clamp(int64_t key) const {
    return key < task.k_begin ? task.k_begin : key > task.k_end ? task.k_end : key;
  }

  // Also what the masks and biases of the rows need.
  TILEWISE_HD void load_queries() {
    const char* q =
        static_cast<const char*>(p.q.data) + E::kSize * (task.sequence.batch * p.q.batch_stride +
                                                         task.sequence.q_start * p.q.seqlen_stride +
                                                         task.kv_head * p.group * p.q.head_stride);
    for (int r = 0; r < kRows; ++r) {
      float* out = scratch.queries + r * q_step;
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
      const Span seen = p.mask.keys_of(r / p.group, task.sequence.n);
      scratch.begin[r] = seen.begin;
      scratch.end[r] = seen.end;
    }
  }
  TILEWISE_HD static void store_pair(float* out, Pair x) {
    Simd::store(out, x.a);
    Simd::store(out + kLanes, x.b);
  }

  // Keys [begin, end) that every row sees, as streams; the few that do not fill a step are left.
  // Returns where they start.
  TILEWISE_HD int64_t all_see(int64_t begin, int64_t end) {
    const int64_t stream_keys = (end - begin) / (kStreams * T::kRun * kSteps) * (T::kRun * kSteps);
    if (stream_keys > 0) {
      bias_lanes(begin, stream_keys);
      const int64_t stream_end = begin + stream_keys;
      for (int64_t key = begin; key < stream_end; key += T::kRun * kSteps) {
        const int64_t next = key + T::kRun * kSteps;
        block(key, kSteps, stream_keys, T::kRun, next < stream_end ? next : key, begin);
      }
      begin += kStreams * stream_keys;
    }
    const int steps = static_cast<int>((end - begin) / T::kStepKeys);
    if (steps > 0) {
      bias_lanes(begin, T::kRun);
      block(begin, steps, T::kRun, T::kStepKeys, begin, begin);
    }
    return begin + steps * T::kStepKeys;
  }

  // `steps` steps from `key` on, `advance` keys apart; the streams are `stream` keys apart.
  __attribute__((noinline)) void block(int64_t key, int steps, int64_t stream, int64_t advance,
                                       int64_t next, int64_t bias_origin) {
    KeyRows k_at{k + key * k_row, k_row, stream * k_row},
        v_at{v + key * v_row, v_row, stream * v_row};
    const KeyRows first_v = v_at, next_k{k + next * k_row, k_row, stream * k_row};
    float* s = scratch.scores;
    for (int step = 0; step < steps; ++step) {
      TILEWISE_UNROLL for (int tile = 0; tile < T::kTilesPerStep; ++tile) {
        const KeyRows k_tile{k_at.first + tile * T::kSegments * k_at.stream, k_row, k_at.stream};
        const KeyRows v_tile{v_at.first + tile * T::kSegments * v_at.stream, v_row, v_at.stream};
        TILEWISE_UNROLL for (int r = 0; r < T::kRowTiles; ++r) {
          const float* q = scratch.queries + r * T::kTileRows * q_step;
          if (r == 0) score_tile<kType, kRows, true>(q, q_step, k_tile, v_tile, pairs, s);
          if (r > 0) score_tile<kType, kRows, false>(q, q_step, k_tile, v_tile, pairs, s);
          s += kLanes;
        }
      }
      k_at.first += advance * k_row;
      v_at.first += advance * v_row;
    }
    const float origin = static_cast<float>(key - bias_origin);
    transform(steps * kStepVecs, [&](int tile) {
      return origin + static_cast<float>(tile / T::kTilesPerStep * advance +
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
      const float* f = scratch.factor + r;
      const float* w = scratch.scores + r;
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
    const Vec scale = Simd::set(p.softcap > 0 ? p.scale / p.softcap : p.scale * kLog2e);
    const Vec cap = Simd::set(p.softcap * kLog2e);
    for (int i = 0; i < vecs; ++i) {
      float* at = scratch.scores + i * kLanes;
      Vec s = Simd::mul(Simd::load(at), scale);
      if (p.softcap > 0) s = Simd::mul(cap, tanh(s));
      if (p.alibi_slopes != nullptr) {
        const int m = i % kRowVecs * kLanes;
        const Vec key = Simd::add(Simd::load(scratch.lane_key), Simd::set(key_of(i / kRowVecs)));
        const Vec distance = Simd::abs(Simd::sub(Simd::load(scratch.position + m), key));
        s = Simd::fma(Simd::load(scratch.slope + m), distance, s);
      }
      Simd::store(at, s);
    }
  }

  // Per lane: the slope and position of its row, and its key relative to the first of its tile.
  // Positions are relative to the key `origin`, so that they stay exact in fp32.
  TILEWISE_HD void bias_lanes(int64_t origin, int64_t stream) {
    if (p.alibi_slopes == nullptr) return;
    const float* slopes =
        p.alibi_slopes + task.sequence.batch * p.alibi_batch_stride + task.kv_head * p.group;
    for (int i = 0; i < kRowVecs * kLanes; ++i) {
      const int r = i % kRows < rows ? i % kRows : 0;
      scratch.slope[i] = -kLog2e * slopes[r % p.group];
      scratch.position[i] =
          static_cast<float>(r / p.group + p.mask.diagonal(task.sequence.n) - origin);
    }
    for (int i = 0; i < kLanes; ++i) {
      scratch.lane_key[i] = static_cast<float>(T::offset(i / T::kTileRows, 1, stream));
    }
  }

  // Scores -> weights, in place; scratch.factor is what O must be multiplied by.
  TILEWISE_HD void weigh(int vecs) {
    const auto max = [](Vec a, Vec b) { return Simd::max(a, b); };
    float* s = scratch.scores;
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
      for (int i = 0; i < kLanes && i < kRows; ++i) scratch.factor[m * kLanes + i] = lanes[i];
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

  // Keys [begin, end), of which a row may see only some: one at a time, and nothing of a hidden key
  // is read.
  __attribute__((noinline)) void some_see(int64_t begin, int64_t end) {
    for (; begin < end; begin += kBlock) {
      const int keys = static_cast<int>(end - begin < kBlock ? end - begin : kBlock);
      const int steps = (keys + T::kStepKeys - 1) / T::kStepKeys;
      for (int j = 0; j < keys; ++j) {
        for (int r = 0; r < rows; ++r) {
          if (sees(r, begin + j)) scratch.scores[j * kRows + r] = dot(r, begin + j);
        }
      }
      bias_lanes(begin, T::kRun);
      transform(steps * kStepVecs, [](int tile) { return static_cast<float>(tile * T::kKeys); });
      for (int j = 0; j < steps * T::kStepKeys; ++j) {
        for (int r = 0; r < kRows; ++r) {
          if (j >= keys || r >= rows || !sees(r, begin + j)) {
            scratch.scores[j * kRows + r] = -__builtin_inff();
          }
        }
      }
      weigh(steps * kStepVecs);
      for (int r = 0; r < rows; ++r) accumulate_row(r, begin, keys);
    }
  }
  TILEWISE_HD bool sees(int r, int64_t key) const {
    return key >= scratch.begin[r] && key < scratch.end[r];
  }

  TILEWISE_HD float dot(int r, int64_t key) const {
    const float* q = scratch.queries + r * q_step;
    const char* at = k + key * k_row;
    Vec a = Simd::zero(), b = Simd::zero();
    int x = 0;
    for (; x < pairs.full; ++x)
      dot_pair(a, b, q + x * kPairElements, E::load(at + x * E::kPairBytes));
    if (pairs.tail > 0) {
      dot_pair(a, b, q + x * kPairElements, E::load(at + x * E::kPairBytes, pairs.tail));
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
      const Vec f = Simd::broadcast(scratch.factor + r);
      Vec a = Simd::mul(f, Simd::load(out)), b = Simd::mul(f, Simd::load(out + kLanes));
      for (int j = 0; j < keys; ++j) {
        if (!sees(r, begin + j)) continue;
        const char* at = v + (begin + j) * v_row + x * E::kPairBytes;
        const Pair value = x < pairs_v.full ? E::load(at) : E::load(at, pairs_v.tail);
        const Vec w = Simd::broadcast(scratch.scores + j * kRows + r);
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
        task.partial->reference[m * kLanes + i] = reference[i];
        task.partial->sum[m * kLanes + i] = sum[i];
      }
    }
  }
};

template <DType kType>
void run_chunk(const DecodeParams& p, const DecodeTask& task, DecodeScratch& scratch) {
  const int64_t rows = task.sequence.n.q * p.group;
  constexpr bool kAll = kLanes >= 8;  // the scalar build takes long enough with three
  if (rows == 1) return Chunk<kType, 1>(p, task, scratch).run();
  if (kAll && rows == 2) return Chunk < kType, kAll ? 2 : 4 > (p, task, scratch).run();
  if (rows <= 4) return Chunk<kType, 4>(p, task, scratch).run();
  if (kAll && rows <= 8) return Chunk < kType, kAll ? 8 : 16 > (p, task, scratch).run();
  Chunk<kType, 16>(p, task, scratch).run();
}

void decode_chunk(const DecodeParams& p, const DecodeTask& task, DecodeScratch& scratch) {
  if (p.dtype == DType::kFp32) return run_chunk<DType::kFp32>(p, task, scratch);
  if (p.dtype == DType::kFp16) return run_chunk<DType::kFp16>(p, task, scratch);
  run_chunk<DType::kBf16>(p, task, scratch);
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE

#include "cpu/decode_combine.inl"
