// Adjacent kv heads of the decode while they go through a chunk, a block of keys at a time.
// Included once per instruction set.
#include "cpu/decode_softmax.inl"

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

// Where rows of several heads lie side by side in memory, a few keys of all heads are read before
// the next few: memory is read in (nearly) the order in which it lies (docs/tuning/cpu.md).
template <DType kType, int kRows>
struct Heads {
  using E = Elements<kType>;
  using P = Products<kType>;
  using Scores = ScoreTile<kType, kRows>;
  using Outputs = OutputTile<kType, kRows>;

  const DecodeParams& p;
  const DecodeTask& task;
  DecodeScratch& scratch;
  const Sequence& at;
  const bool in_turns;  // see Turns
  const ScoreRule rule;
  const int rows;        // of a head, without padding
  const int width;       // of the scores: rows of all heads, each head's padded to kRows
  const int width_bits;  // its logarithm
  const PairCount pairs, pairs_v;
  const int64_t q_head, o_head;  // floats of a head's queries and output
  float* const raw;              // raw scores: as the scores lie, and where they lie if kRows > 1
  KeyRows k, v;                  // key 0 of the first head
  int64_t k_head, v_head;        // bytes from head to head
  int score_keys, group_keys;    // keys that a head takes before the next head's turn: of K, of V

  Heads(const DecodeParams& params, const DecodeTask& t, DecodeScratch& s)
      : p(params),
        task(t),
        scratch(s),
        at(t.sequence),
        in_turns(kRows == 1 && t.heads > 1 && params.in_turns),
        rule(params),
        rows(static_cast<int>(at.n.q * p.group)),
        width(kRows * padded_heads(t.heads)),
        width_bits(__builtin_ctz(static_cast<unsigned>(width))),
        pairs(p.head_dim),
        pairs_v(p.head_dim_v),
        q_head(padded_pairs(p.head_dim) * kRows * P::kQueryPair),
        o_head(padded_pairs(p.head_dim_v) * kRows * kPairElements),
        raw(kRows == 1 ? s.raw : s.scores),
        k(rows_of(p.k)),
        v(rows_of(p.v)),
        k_head(p.k.head_stride * E::kSize),
        v_head(p.v.head_stride * E::kSize),
        score_keys(kRows < 8 && t.heads > 1 ? Scores::kKeys : kDecodeBlock),
        group_keys(group_of(p.head_dim_v * E::kSize)) {
    load_queries();
    for (int h = 0; h < task.heads; ++h) {
      float* o = partial(h)->o();
      for (int64_t i = 0; i < o_head; ++i) o[i] = 0.0f;
    }
    for (int i = 0; i < kDecodeWidth; ++i) {
      scratch.reference[i] = -__builtin_inff();
      scratch.sum[i] = 0.0f;
    }
    for (int i = 0; i < kDecodeBlock * kDecodeWidth; ++i) scratch.scores[i] = 0.0f;
  }

  int group_of(int64_t row_bytes) const {
    const int step = in_turns && !P::kInWords ? 1 : 2;  // words are of two keys
    const int64_t steps = reach(kRows, task.heads, in_turns).turn / (task.heads * row_bytes) / step;
    return steps < 1 ? step : static_cast<int>(step * steps);
  }
  static int64_t padded_pairs(int64_t dim) {
    return (dim + kDecodePad - 1) / kDecodePad * kDecodePad / kPairElements;
  }
  static int padded_heads(int heads) { return heads <= 2 ? heads : heads <= 4 ? 4 : 8; }

  KeyRows rows_of(const DecodeTensor& x) const {
    const char* first = static_cast<const char*>(x.data) +
                        E::kSize * (at.batch * x.batch_stride + at.k_start * x.seqlen_stride +
                                    task.kv_head * x.head_stride);
    return {first, x.seqlen_stride * E::kSize};
  }
  // What is to be asked for from key `key` on.
  NextRows next_rows(const KeyRows& x, int64_t head, int32_t full_pairs, int64_t key) const {
    const int32_t bytes = full_pairs * E::kPairBytes;
    const int64_t ahead =  // keys
        reach(kRows, task.heads, in_turns).ahead / (task.heads * bytes + 1) + 1;
    return {x.first + (key + ahead) * x.row, bytes, task.heads, head,
            x.row - (task.heads - 1) * head};
  }
  KeyRows keys_from(const KeyRows& x, int64_t key, int64_t head) const {
    return {x.first + key * x.row + head, x.row};
  }
  DecodePartial* partial(int h) const {
    return reinterpret_cast<DecodePartial*>(reinterpret_cast<char*>(task.partial) +
                                            h * task.stride);
  }
  const float* query(int h, int r) const {
    return scratch.queries + h * q_head + r * P::kQueryPair;
  }

  // Also what the masks and biases of the rows need.
  void load_queries() {
    const GroupedRows q_rows{p.q.seqlen_stride, p.q.head_stride, p.group};
    const char* q = static_cast<const char*>(p.q.data) +
                    E::kSize * (at.batch * p.q.batch_stride + at.q_start * p.q.seqlen_stride +
                                task.kv_head * p.group * p.q.head_stride);
    for (int64_t i = 0; i < task.heads * q_head; ++i) scratch.queries[i] = 0.0f;
    for (int h = 0; h < task.heads; ++h) {
      for (int r = 0; r < rows; ++r) {
        const char* in = q + (h * p.group * p.q.head_stride + q_rows.offset(r)) * E::kSize;
        float* out = scratch.queries + h * q_head + r * P::kQueryPair;
        constexpr int kStep = kRows * P::kQueryPair;
        int x = 0;
        for (; x < pairs.full; ++x) P::store_query(out + x * kStep, P::key(in + x * E::kPairBytes));
        if (pairs.tail > 0) {
          P::store_query(out + x * kStep, P::key(in + x * E::kPairBytes, pairs.tail));
        }
      }
    }
    for (int r = 0; r < rows; ++r) {
      const Span seen = p.mask.keys_of(r / p.group, at.n);
      scratch.begin[r] = seen.begin;
      scratch.end[r] = seen.end;
    }
    for (int i = 0; i < kDecodeWidth && rule.alibi; ++i) {
      const int h = i % width / kRows, r = i % kRows;
      const bool real = h < task.heads && r < rows;
      const float* slopes = p.alibi_slopes + at.batch * p.alibi_batch_stride;
      scratch.slope[i] = real ? -kLog2e * slopes[(task.kv_head + h) * p.group + r % p.group] : 0.0f;
      scratch.lane_key[i] = static_cast<float>(i / width);
    }
  }

  // At most kDecodeBlock keys. kEdge: a row may see only some of them; nothing else is read then.
  template <bool kEdge>
  __attribute__((noinline)) void block(int64_t begin, int keys) {
    scores<kEdge>(begin, keys);
    weigh_block<kEdge>(begin, keys);
    if constexpr (kEdge) {
      for (int h = 0; h < task.heads; ++h) {
        for (int r = 0; r < rows; ++r) accumulate_row(h, r, begin, keys);
      }
    } else {
      accumulate(begin, keys);
    }
  }

  template <bool kEdge>
  void scores(int64_t begin, int keys) {
    int done = 0;
    if constexpr (!kEdge && kRows > 1) done = tile_scores(begin, keys);
    row_scores<kEdge>(begin, done, keys);
  }
  // Raw scores -> weights.
  template <bool kEdge>
  void weigh_block(int64_t begin, int keys) {
    transform(begin, keys);
    if (kEdge) hide_keys(begin, keys);
    weigh_any(scratch, width);
    if constexpr (!kEdge && P::kInWords) round_weights<Simd>(scratch.scores, width);
  }

  // Whole tiles of keys; returns how many keys they cover.
  int tile_scores(int64_t begin, int keys) {
    // Where arithmetic and not memory sets the pace (docs/tuning/cpu.md).
    if constexpr (kLanes >= 8 && kRows >= kLanes / 2) {
      if (p.head_dim == 128) return tiles<128 / kPairElements>(begin, keys);
      if (p.head_dim == 64) return tiles<64 / kPairElements>(begin, keys);
    }
    return tiles<0>(begin, keys);
  }
  // kFull: see ScoreTile.
  template <int kFull>
  int tiles(int64_t begin, int keys) {
    NextRows next = next_rows(k, k_head, pairs.full, begin);
    const PairCount count = pairs;
    const int64_t step = width;
    const int all = keys / Scores::kKeys * Scores::kKeys;
    for (int from = 0; from < all; from += score_keys) {
      const int to = from + score_keys < all ? from + score_keys : all;
      for (int h = 0; h < task.heads; ++h) {
        KeyRows tile = keys_from(k, begin + from, h * k_head);
        const float* q = query(h, 0);
        float* s = raw + from * step + h * kRows;
        for (int j = from; j < to; j += Scores::kKeys) {
          __asm__("" : "+r"(q));  // g++ would load queries ahead of the loop, and spill them
          Scores::template run<kFull, true>(q, tile, count, next, s, step);
          for (int r = Scores::kTileRows; r < kRows; r += Scores::kTileRows) {
            Scores::template run<kFull, false>(q + r * P::kQueryPair, tile, count, next, s + r,
                                               step);
          }
          tile.first += Scores::kKeys * tile.row;
          s += Scores::kKeys * step;
        }
      }
    }
    return all;
  }

  // One score after the other, of keys [from, keys) of the block.
  template <bool kEdge>
  void row_scores(int64_t begin, int from, int keys) {
    NextRows next = next_rows(k, k_head, pairs.full, begin);
    for (int i = from * width; i < keys * width; i += kLanes) {
      Vec sums[kLanes][kParts<kType>];
      TILEWISE_UNROLL for (int n = 0; n < kLanes; ++n) {
        TILEWISE_UNROLL for (int m = 0; m < kParts<kType>; ++m) sums[n][m] = Simd::zero();
        const int j = (i + n) >> width_bits, h = ((i + n) & (width - 1)) / kRows,
                  r = (i + n) % kRows;
        if (j >= keys || h >= task.heads || r >= rows) continue;
        if (kEdge && !sees(r, begin + j)) continue;
        const KeyRows key = keys_from(k, begin + j, h * k_head);
        multiply_row<kType, kRows>(query(h, r), key.first, pairs,
                                   !kEdge && kRows == 1 ? &next : nullptr, sums[n]);
      }
      Simd::store(raw + i, total(sums));
    }
  }
  bool sees(int r, int64_t key) const { return key >= scratch.begin[r] && key < scratch.end[r]; }

  // Raw dot products -> scores; those after the last key become -inf.
  void transform(int64_t begin, int keys) {
    if (rule.alibi) {  // positions count from the block's first key, so that they are exact in fp32
      const int64_t diagonal = p.mask.diagonal(at.n) - begin;
      for (int i = 0; i < kDecodeWidth; ++i) {
        scratch.position[i] = static_cast<float>(i % kRows / p.group + diagonal);
      }
    }
    float* s = scratch.scores;
    for (int i = 0; i < keys * width; i += kLanes) {
      Simd::store(s + i, rule.apply(Simd::load(raw + i), scratch, i, width));
    }
    for (int i = keys * width; i < kDecodeBlock * width; ++i) s[i] = -__builtin_inff();
  }

  void hide_keys(int64_t begin, int keys) {
    for (int i = 0; i < keys * width; ++i) {
      const int r = i % kRows;
      if (r < rows && !sees(r, begin + i / width)) scratch.scores[i] = -__builtin_inff();
    }
  }

  Output output(int h) const {
    return {partial(h)->o(), scratch.part + h * o_head, scratch.factor + h * kRows,
            scratch.scores + h * kRows, width};
  }

  void accumulate(int64_t begin, int keys) {
    NextRows next = next_rows(v, v_head, pairs_v.full, begin);
    for (int j = 0; j < keys; j += group_keys) accumulate_group(begin, j, keys, next);
  }
  // The next group_keys keys, from key j of the block on. The block has `keys`.
  __attribute__((noinline)) void accumulate_group(int64_t begin, int j, int keys,
                                                  NextRows& shared) {
    NextRows next = shared;
    const int count = keys - j < group_keys ? keys - j : group_keys;
    for (int h = 0; h < task.heads; ++h) {
      Output out = output(h);
      out.weights += j * width;
      Outputs::run_all(out, {count, j == 0, j + count == keys}, keys_from(v, begin + j, h * v_head),
                       pairs_v, next);
    }
    shared = next;
  }

  // The same of the keys that one row sees.
  void accumulate_row(int h, int r, int64_t begin, int keys) {
    const Output out = output(h);
    const KeyRows values = keys_from(v, begin, h * v_head);
    for (int x = 0; x < pairs_v.full + (pairs_v.tail > 0); ++x) {
      float* o = out.o + Outputs::at_row(x, r, 0);
      Vec a = Simd::zero(), b = Simd::zero();
      for (int j = 0; j < keys; ++j) {
        if (!sees(r, begin + j)) continue;
        const char* in = values.first + j * values.row + x * E::kPairBytes;
        const Pair value = x < pairs_v.full ? E::load(in) : E::load(in, pairs_v.tail);
        const Vec w = Simd::broadcast(out.weights + j * width + r);
        a = Simd::fma(w, value.a, a);
        b = Simd::fma(w, value.b, b);
      }
      const Vec factor = Simd::broadcast(out.factor + r);
      Simd::store(o, Simd::fma(factor, Simd::load(o), a));
      Simd::store(o + kLanes, Simd::fma(factor, Simd::load(o + kLanes), b));
    }
  }

  void store_softmax() {
    for (int i = 0; i < task.heads * kRows; ++i) {
      partial(i / kRows)->reference[i % kRows] = scratch.reference[i];
      partial(i / kRows)->sum[i % kRows] = scratch.sum[i];
    }
  }
};

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
