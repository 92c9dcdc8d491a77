// The steps of one (query block, key block) pair: scores, weights, output. Scores and weights stand
// as (keys, queries), the queries in the lanes.
//
// A row's reference is not its running maximum: it moves only when a score exceeds it by more than
// kReferenceSlack. So most blocks need no maximum before their exponentials, which are then taken
// in the registers that hold the scores (weigh_in_registers). Every other block goes through memory
// (weigh). Both give a row the same bits, whatever the rows in its neighbour lanes do.
namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

constexpr float kReferenceSlack = 40.0f;  // a weight is at most 2^40: harmless in fp32
// From here on the rounding of a score is so coarse that c * s - reference (one rounding) and
// round(c * s) - reference differ by whole exponents: such rows round first, and go through memory.
constexpr float kLargeReference = 0x1p24f;
constexpr float kInfinity = __builtin_inff();

// A packed block of keys.
struct KeyBlock {
  int64_t tile;         // its index
  int64_t begin;        // its first key
  int rows;             // keys up to the end of the sequence
  bool finite;          // every element of its V rows is
  const Word* keys;     // panels (rows / kLanes, query_words, kLanes)
  const Word* values;   // panels (value_rows / kLanes, block_words, kLanes)
  int64_t values_from;  // element offset of its first V row
};

// The arrays of a query block; width is vecs * kLanes.
struct BlockArrays {
  Word* queries;     // (query_words, width)
  float* output;     // (value_rows, width)
  float* reference;  // (width), as are the following
  float* sum;
  float* factor;
  float* slope;
  int64_t* visible_begin;
  int64_t* visible_end;
  int64_t* diagonal;
  const Word* next_queries;  // of the next query block: soon to be read
};

// What a task's steps share.
struct Context {
  const ForwardParams& p;
  ForwardScratch layout;
  Upcoming& upcoming;
  float* scores = nullptr;      // (block_n, width)
  Word* weights = nullptr;      // (block_words, width)
  bool plain = false;           // no softcap, no ALiBi, scale > 0: exponents are c * score with
  float exponent_scale = 1.0f;  // this c; else transform_scores makes them, and c is 1
  int depth = 0;                // words of a query that the tiles sum over
  int block_words = 0;

  const Word* key_panel(const KeyBlock& keys, int key) const {
    return keys.keys + key / kLanes * layout.query_words * kLanes + key % kLanes;
  }
  const Word* value_panel(const KeyBlock& keys, int x) const {
    return keys.values + x / kLanes * block_words * kLanes + x % kLanes;
  }
};

// Rows of the register tile: a lone vector takes a whole panel, to have enough accumulators.
template <int kVecs>
constexpr int kRowsOf = kVecs == 1 ? kLanes : Simd::kForwardRows;

// Lines of upcoming rows per kTileUnroll words of a tile: one in 24 clocks or so.
template <int kRows, int kVecs>
constexpr int kTouches = kRows* kVecs / 12;

// Weights of two keys, the later one only used when words are pairs along the keys.
template <class S, int kVecs>
TILEWISE_HD void store_weights(Word* out, const Vec* even, const Vec* odd) {
  TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
    if constexpr (S::kWordElements == 2) {
      S::store_words(out + n * kLanes, S::pair(even[n], odd[n]));
    } else {
      S::store(out + n * kLanes, even[n]);
      S::store(out + (kVecs + n) * kLanes, odd[n]);
    }
  }
}

// P = exp2(c * S - reference), S never leaving the registers. False when a row's reference would
// have to move; then nothing counts.
template <int kVecs>
TILEWISE_OWN_REGISTERS bool weigh_in_registers(const Context& c, const BlockArrays& a,
                                               const KeyBlock& keys) {
  constexpr int kRows = kRowsOf<kVecs>, kWidth = kVecs * kLanes;
  const Vec scale = Simd::set(c.exponent_scale);
  Vec sum[kVecs], highest[kVecs];
  TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
    sum[n] = Simd::zero();
    highest[n] = Simd::set(-kInfinity);
  }
  for (int key = 0; key < keys.rows; key += kRows) {
    Vec s[kRows][kVecs];
    multiply(s, c.key_panel(keys, key), kLanes, a.queries, c.depth,
             c.upcoming.next<kTouches<kRows, kVecs>>(c.depth / kTileUnroll));
    TILEWISE_UNROLL for (int i = 0; i < kRows; ++i) {
      TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
        highest[n] = Simd::max(s[i][n], highest[n]);
      }
    }
    Word* out = c.weights + key / Simd::kWordElements * kWidth;
    TILEWISE_UNROLL for (int i = 0; i < kRows; ++i) {
      TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
        s[i][n] = Simd::fms(s[i][n], scale, Simd::load(a.reference + n * kLanes));
      }
      exp2_in_place<kVecs>(s[i]);
      TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) sum[n] = Simd::add(sum[n], s[i][n]);
      if (i % 2 == 1) {
        store_weights<Simd, kVecs>(out + (i - 1) / Simd::kWordElements * kWidth, s[i - 1], s[i]);
      }
    }
  }
  bool moves = false;
  TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
    const Vec limit = Simd::add(Simd::load(a.reference + n * kLanes), Simd::set(kReferenceSlack));
    moves |= Simd::any(Simd::less(limit, Simd::mul(highest[n], scale)));
  }
  if (moves) return false;
  TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
    Simd::store(a.sum + n * kLanes, Simd::add(Simd::load(a.sum + n * kLanes), sum[n]));
  }
  return true;
}

// Raw scores q . k of keys [0, rows) and the highest of each row.
template <int kVecs>
TILEWISE_OWN_REGISTERS void raw_scores(const Context& c, const BlockArrays& a, const KeyBlock& keys,
                                       int rows, Vec (&highest)[kVecs]) {
  constexpr int kRows = kRowsOf<kVecs>, kWidth = kVecs * kLanes;
  TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) highest[n] = Simd::set(-kInfinity);
  for (int key = 0; key < rows; key += kRows) {
    Vec s[kRows][kVecs];
    multiply(s, c.key_panel(keys, key), kLanes, a.queries, c.depth,
             c.upcoming.next<kTouches<kRows, kVecs>>(c.depth / kTileUnroll));
    TILEWISE_UNROLL for (int i = 0; i < kRows; ++i) {
      TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
        highest[n] = Simd::max(s[i][n], highest[n]);
        Simd::store(c.scores + (key + i) * kWidth + n * kLanes, s[i][n]);
      }
    }
  }
}

// Scores become exponents: scale, softcap, ALiBi, log2(e), in this order.
template <int kVecs>
void transform_scores(const Context& c, const BlockArrays& a, const KeyBlock& keys, int rows) {
  constexpr int kWidth = kVecs * kLanes;
  const Vec scale = Simd::set(c.p.scale), cap = Simd::set(c.p.softcap), log2e = Simd::set(kLog2e);
  for (int n = 0; n < kVecs; ++n) {
    alignas(64) float ahead[kLanes];  // of the block's first key
    for (int i = 0; i < kLanes; ++i) {
      ahead[i] = static_cast<float>(a.diagonal[n * kLanes + i] - keys.begin);
    }
    const Vec distance = Simd::load(ahead);
    const Vec minus_slope = Simd::sub(Simd::zero(), Simd::load(a.slope + n * kLanes));
    for (int key = 0; key < rows; ++key) {
      float* at = c.scores + key * kWidth + n * kLanes;
      Vec s = Simd::mul(Simd::load(at), scale);
      if (c.p.softcap > 0) s = Simd::mul(cap, tanh(Simd::div(s, cap)));
      if (c.p.alibi_slopes != nullptr) {
        const Vec from_diagonal = Simd::sub(distance, Simd::set(static_cast<float>(key)));
        s = Simd::fma(minus_slope, Simd::abs(from_diagonal), s);
      }
      Simd::store(at, Simd::mul(s, log2e));
    }
  }
}

// Exponents of hidden keys become -inf, after scaling, so that no scale can bring them back.
template <int kVecs>
void hide_keys(const Context& c, const BlockArrays& a, const QueryBlock& block,
               const KeyBlock& keys, int rows) {
  constexpr int kWidth = kVecs * kLanes;
  const auto within = [&](int64_t key) {
    const int64_t k = key - keys.begin;
    return static_cast<int>(k < 0 ? 0 : k > rows ? rows : k);
  };
  const int all_begin = within(block.all_begin), any_end = within(block.any_end);
  int all_end = within(block.all_end);
  if (all_end < all_begin) all_end = all_begin;
  for (int n = 0; n < kVecs; ++n) {
    float* scores = c.scores + n * kLanes;
    for (int key = any_end; key < rows; ++key) {
      Simd::store(scores + key * kWidth, Simd::set(-kInfinity));
    }
    if (all_begin == 0 && all_end >= any_end) continue;
    alignas(64) float begins[kLanes], ends[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      begins[i] = static_cast<float>(within(a.visible_begin[n * kLanes + i]));
      ends[i] = static_cast<float>(within(a.visible_end[n * kLanes + i]));
    }
    const Vec begin = Simd::load(begins), end = Simd::load(ends);
    const auto hide = [&](int key) {
      const Vec at = Simd::set(static_cast<float>(key));
      const Mask seen = Simd::both(Simd::less_equal(begin, at), Simd::less(at, end));
      float* s = scores + key * kWidth;
      Simd::store(s, Simd::select(seen, Simd::load(s), Simd::set(-kInfinity)));
    };
    for (int key = 0; key < all_begin; ++key) hide(key);
    for (int key = all_end; key < any_end; ++key) hide(key);
  }
}

template <int kVecs>
TILEWISE_HD void highest_scores(const Context& c, int rows, Vec (&highest)[kVecs]) {
  TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
    Vec h = Simd::set(-kInfinity);
    for (int key = 0; key < rows; ++key) {
      h = Simd::max(Simd::load(c.scores + (key * kVecs + n) * kLanes), h);
    }
    highest[n] = h;
  }
}

// Moves the references that a row's highest exponent asks for. Returns whether any moved; then
// a.factor is what the old sums and outputs must be multiplied by.
template <int kVecs>
TILEWISE_HD bool move_references(const Context& c, const BlockArrays& a, QueryBlock& block,
                                 const Vec (&highest)[kVecs]) {
  bool moved = false;
  block.settled = true;
  TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
    const Vec before = Simd::load(a.reference + n * kLanes);
    const Vec wanted = Simd::mul(highest[n], Simd::set(c.exponent_scale));
    const Mask moves = Simd::less(Simd::add(before, Simd::set(kReferenceSlack)), wanted);
    const Vec after = Simd::select(moves, wanted, before);
    moved |= Simd::any(moves);
    block.settled &= Simd::all(Simd::less(Simd::abs(after), Simd::set(kLargeReference)));
    // An empty row keeps -inf; its factor is exp2(-inf - 0) = 0.
    const Vec shift = Simd::select(Simd::equal(after, Simd::set(-kInfinity)), Simd::zero(), after);
    Simd::store(a.factor + n * kLanes, exp2(Simd::sub(before, shift)));
    Simd::store(a.reference + n * kLanes, after);
  }
  return moved;
}

// P = exp2(c * S - reference) from memory to memory, and the rows' sums of P in key order.
template <int kVecs>
TILEWISE_OWN_REGISTERS void exponentiate(const Context& c, const BlockArrays& a, int rows,
                                         Vec (&sum)[kVecs]) {
  constexpr int kWidth = kVecs * kLanes;
  const Vec scale = Simd::set(c.exponent_scale);
  Vec shift[kVecs];
  Mask large[kVecs];
  bool any_large = false;
  TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
    const Vec reference = Simd::load(a.reference + n * kLanes);
    const Mask empty = Simd::equal(reference, Simd::set(-kInfinity));
    shift[n] = Simd::select(empty, Simd::zero(), reference);
    large[n] = Simd::less_equal(Simd::set(kLargeReference), Simd::abs(shift[n]));
    any_large |= Simd::any(large[n]);
    sum[n] = Simd::zero();
  }
  for (int key = 0; key < rows; key += 2) {
    Vec x[2 * kVecs];
    TILEWISE_UNROLL for (int i = 0; i < 2 * kVecs; ++i) {
      const Vec s = Simd::load(c.scores + key * kWidth + i * kLanes);
      x[i] = Simd::fms(s, scale, shift[i % kVecs]);
      if (any_large) {
        const Vec rounded = Simd::sub(Simd::mul(s, scale), shift[i % kVecs]);
        x[i] = Simd::select(large[i % kVecs], rounded, x[i]);
      }
    }
    exp2_in_place<2 * kVecs>(x);
    TILEWISE_UNROLL for (int i = 0; i < 2 * kVecs; ++i) {
      sum[i % kVecs] = Simd::add(sum[i % kVecs], x[i]);
    }
    store_weights<Simd, kVecs>(c.weights + key / Simd::kWordElements * kWidth, x, x + kVecs);
  }
}

// How a block's part of the output joins what is there.
enum class Join { kSet, kAdd, kRescale };

// O = P V^T of this block, summed from 0, then joined once: two short sums are more accurate than
// one long one (docs/tuning/cpu.md).
template <int kVecs, Join kJoin>
TILEWISE_OWN_REGISTERS void accumulate(const Context& c, const BlockArrays& a, const KeyBlock& keys,
                                       int rows) {
  constexpr int kRows = kRowsOf<kVecs>, kWidth = kVecs * kLanes;
  const int depth = rows / Simd::kWordElements;
  for (int x = 0; x < c.p.head_dim_v; x += kRows) {
    Vec acc[kRows][kVecs];
    // The next tile's output, and a part of the next block's queries, come from the L2 cache.
    const TouchBesides<kTouches<kRows, kVecs>> bring = {
        c.upcoming.next<kTouches<kRows, kVecs>>(depth / kTileUnroll),
        a.output + (x + kRows) * kWidth, a.next_queries + x * kWidth};
    multiply(acc, c.value_panel(keys, x), kLanes, c.weights, depth, bring);
    TILEWISE_UNROLL for (int i = 0; i < kRows; ++i) {
      TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
        float* out = a.output + (x + i) * kWidth + n * kLanes;
        Vec before = Simd::zero();  // -0 + 0 is 0, as in rows whose first block came earlier
        if constexpr (kJoin != Join::kSet) before = Simd::load(out);
        if constexpr (kJoin == Join::kRescale) {
          acc[i][n] = Simd::fma(before, Simd::load(a.factor + n * kLanes), acc[i][n]);
        } else {
          acc[i][n] = Simd::add(before, acc[i][n]);
        }
        Simd::store(out, acc[i][n]);
      }
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
