// S = Q K^T of one (query block, key block) pair, by way of memory, as (keys, queries) with the
// queries in the lanes; and the vocabulary of the forward's steps.
namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

constexpr float kInfinity = __builtin_inff();

// A packed block of keys.
struct KeyBlock {
  int64_t tile;         // its index
  int64_t begin;        // its first key
  int rows;             // keys up to the end of the sequence
  bool finite;          // every element of its V rows is
  const Word* keys;     // panels (rows / kLanes, query_words, kLanes); or the caller's rows,
  int64_t key_stride;   // this many words apart (0: panels)
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
  float* origin;  // the score that the reference was made from
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
  bool plain = false;           // no softcap, no ALiBi, scale > 0: scores stay q . k
  float score_scale = 1.0f;     // true scores are this times those of `scores`,
  float exponent_scale = 1.0f;  // and exponents (in base 2) this times them
  int depth = 0;                // words of a query that the tiles sum over
  int block_words = 0;

  template <class Left>
  TILEWISE_HD Left keys_at(const KeyBlock& keys, int key) const {
    if constexpr (std::is_same_v<Left, RowsInPlace>) {
      return {keys.keys + key * keys.key_stride, keys.key_stride};
    } else {
      return {keys.keys + key / kLanes * layout.query_words * kLanes + key % kLanes};
    }
  }
  TILEWISE_HD Panel values_at(const KeyBlock& keys, int x) const {
    return {keys.values + x / kLanes * block_words * kLanes + x % kLanes};
  }
};

// Rows of the register tile: a lone vector takes a whole panel, to have enough accumulators.
template <int kVecs>
constexpr int kRowsOf = kVecs == 1 ? kLanes : Simd::kForwardRows;

// Lines of upcoming rows per kTileUnroll words of a tile: one in 24 clocks or so.
template <int kRows, int kVecs>
constexpr int kTouches = (kRows * kVecs) / 12;

// Raw scores q . k of keys [0, rows) and the highest of each row.
template <class Left, int kVecs>
TILEWISE_OWN_REGISTERS void raw_scores(const Context& c, const BlockArrays& a, const KeyBlock& keys,
                                       int rows, Vec (&highest)[kVecs]) {
  constexpr int kRows = kRowsOf<kVecs>, kWidth = kVecs * kLanes;
  TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) highest[n] = Simd::set(-kInfinity);
  for (int key = 0; key < rows; key += kRows) {
    Vec s[kRows][kVecs];
    multiply(s, c.keys_at<Left>(keys, key), a.queries, c.depth,
             c.upcoming.next<kTouches<kRows, kVecs>>(c.depth / kTileUnroll));
    TILEWISE_UNROLL for (int i = 0; i < kRows; ++i) {
      TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
        highest[n] = Simd::max(s[i][n], highest[n]);
        Simd::store(c.scores + (key + i) * kWidth + n * kLanes, s[i][n]);
      }
    }
  }
}

// Scores become true scores: scale, softcap, ALiBi, in this order.
template <int kVecs>
void transform_scores(const Context& c, const BlockArrays& a, const KeyBlock& keys, int rows) {
  constexpr int kWidth = kVecs * kLanes;
  const Vec scale = Simd::set(c.p.scale), cap = Simd::set(c.p.softcap);
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
      Simd::store(at, s);
    }
  }
}

// Scores of hidden keys become -inf; the scales that follow are positive.
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

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
