// P = exp2(S - reference) and O += P V of one (query block, key block) pair.
//
// A row's reference is not its running maximum: it moves only when a score exceeds it by more than
// kReferenceSlack. So most blocks need no maximum before their exponentials, which are then taken
// in the registers that hold the scores (weigh_in_registers). Every other block goes through memory
// (weigh). Both give a row the same bits, whatever the rows in its neighbour lanes do.
namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

constexpr float kReferenceSlack = 40.0f;  // a weight is at most 2^40: harmless in fp32
// From here on c * score may overflow, and its rounding is worth whole exponents: such rows take
// their exponents as c * (score - highest score), and go through memory.
constexpr float kLargeReference = 0x1p24f;

TILEWISE_HD Mask is_small(Vec reference) {  // and finite
  return Simd::less(Simd::abs(reference), Simd::set(kLargeReference));
}
TILEWISE_HD Vec finite(Vec x) {
  const Vec most = Simd::set(__FLT_MAX__);
  return Simd::max(Simd::sub(Simd::zero(), most), Simd::select(Simd::less(most, x), most, x));
}

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

// Moves the references that a row's highest score asks for. Returns whether any moved; then
// a.factor is what the old sums and outputs must be multiplied by.
template <int kVecs>
TILEWISE_HD bool move_references(const Context& c, const BlockArrays& a, QueryBlock& block,
                                 const Vec (&highest)[kVecs]) {
  const Vec lowest = Simd::set(-kInfinity), nan = Simd::set(__builtin_nanf(""));
  const Vec scale = Simd::set(c.exponent_scale), slack = Simd::set(kReferenceSlack);
  bool moved = false;
  block.settled = true;
  TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
    const Vec before = Simd::load(a.reference + n * kLanes);
    const Vec origin_before = Simd::load(a.origin + n * kLanes);
    const Mask small = is_small(before);
    const Vec wanted = Simd::mul(highest[n], scale);
    const Vec large_rise = Simd::mul(Simd::sub(highest[n], origin_before), scale);
    const Mask moves = Simd::both(Simd::less(lowest, highest[n]),
                                  Simd::less(Simd::select(small, Simd::add(before, slack), slack),
                                             Simd::select(small, wanted, large_rise)));
    const Mask infinite = Simd::equal(highest[n], Simd::set(kInfinity));  // the row becomes NaN
    const Vec after = Simd::select(infinite, nan, Simd::select(moves, finite(wanted), before));
    const Vec origin = Simd::select(infinite, nan, Simd::select(moves, highest[n], origin_before));
    moved |= Simd::any(moves);
    block.settled &= Simd::all(is_small(after));
    // An empty row keeps -inf; its factor is exp2(-inf - 0) = 0.
    const Vec shift = Simd::select(Simd::equal(origin, lowest), Simd::zero(), origin);
    const Vec large_change = Simd::mul(Simd::sub(origin_before, shift), scale);
    Simd::store(a.factor + n * kLanes,
                exp2(Simd::select(is_small(after), Simd::sub(before, after), large_change)));
    Simd::store(a.reference + n * kLanes, after);
    Simd::store(a.origin + n * kLanes, origin);
  }
  return moved;
}

// P = exp2(c * S - reference) from memory to memory, and the rows' sums of P in key order.
template <int kVecs>
TILEWISE_OWN_REGISTERS void exponentiate(const Context& c, const BlockArrays& a,
                                         const QueryBlock& block, int rows, Vec (&sum)[kVecs]) {
  constexpr int kWidth = kVecs * kLanes;
  const Vec scale = Simd::set(c.exponent_scale);
  Vec shift[kVecs], origin[kVecs];
  Mask small[kVecs];
  TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
    const Vec reference = Simd::load(a.reference + n * kLanes);
    const Mask empty = Simd::equal(reference, Simd::set(-kInfinity));
    shift[n] = Simd::select(empty, Simd::zero(), reference);
    origin[n] = Simd::load(a.origin + n * kLanes);
    small[n] = is_small(shift[n]);
    sum[n] = Simd::zero();
  }
  for (int key = 0; key < rows; key += 2) {
    Vec x[2 * kVecs];
    TILEWISE_UNROLL for (int i = 0; i < 2 * kVecs; ++i) {
      const Vec s = Simd::load(c.scores + key * kWidth + i * kLanes);
      x[i] = Simd::fms(s, scale, shift[i % kVecs]);
      if (block.settled) continue;
      const Vec below = Simd::mul(Simd::sub(s, origin[i % kVecs]), scale);
      x[i] = Simd::select(small[i % kVecs], x[i], below);
    }
    exp2_in_place<2 * kVecs>(x);
    TILEWISE_UNROLL for (int i = 0; i < 2 * kVecs; ++i) {
      sum[i % kVecs] = Simd::add(sum[i % kVecs], x[i]);
    }
    store_weights<Simd, kVecs>(c.weights + key / Simd::kWordElements * kWidth, x, x + kVecs);
  }
}

// P = exp2(c * S - reference), S never leaving the registers. False when a row's reference would
// have to move; then nothing counts.
template <class Left, int kVecs>
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
    multiply(s, c.keys_at<Left>(keys, key), a.queries, c.depth,
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
    multiply(acc, c.values_at(keys, x), c.weights, depth, bring);
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
