// The output of the decode: weights times V in registers. Included once per instruction set.
#include "cpu/decode_tiles.inl"

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

// The output of one head's rows while it goes through a block of keys. The block's part of it is
// summed from 0 in key order, then joined once: two short sums are more accurate than one long one.
struct Output {
  float *o, *part;       // (pairs, rows, elements of a pair)
  const float* factor;   // (rows): of o, where the block's part joins it
  const float* weights;  // (keys, width)
  int64_t width;
};

// Where a group of keys stands in its block.
struct GroupOfKeys {
  int keys;
  bool first, last;
};

// Rows and pairs of one pass over V: as many accumulators as the registers hold.
template <DType kType, int kRows>
struct OutputTile {
  static constexpr int kMostRows = kLanes >= 16 ? 8 : 4;
  static constexpr int kTileRows = kRows < kMostRows ? kRows : kMostRows;
  static constexpr int kPairs = kMostRows / kTileRows < 4 ? kMostRows / kTileRows : 4;

  using E = Elements<kType>;
  using P = Products<kType>;

  template <int kCount>
  using Sums = Vec[kTileRows][2 * kCount];

  // sums += weights * v of one key, as fp32. kTail > 0 elements of a last pair.
  template <int kCount, bool kTail>
  TILEWISE_HD static void add_key(Sums<kCount>& sums, const float* weights, const char* v,
                                  int tail) {
    TILEWISE_UNROLL for (int n = 0; n < kCount; ++n) {
      const Pair value = kTail ? E::load(v, tail) : E::load(v + n * E::kPairBytes);
      TILEWISE_UNROLL for (int r = 0; r < kTileRows; ++r) {
        const Vec weight = Simd::broadcast(weights + r);
        sums[r][2 * n] = Simd::fma(weight, value.a, sums[r][2 * n]);
        sums[r][2 * n + 1] = Simd::fma(weight, value.b, sums[r][2 * n + 1]);
      }
    }
  }

  // The same of two keys, whose weights are words. An odd last key has no partner.
  template <int kCount, bool kTail, class W>
  TILEWISE_HD static void add_two_keys(Sums<kCount>& sums, const float* weights, const char* v,
                                       int64_t row, bool alone, int tail) {
    TILEWISE_UNROLL for (int n = 0; n < kCount; ++n) {
      const char* at = v + n * E::kPairBytes;
      const auto load = [&](const char* p) __attribute__((always_inline)) {
        return kTail ? P::key(p, tail) : P::key(p);
      };
      const auto pair = W::pair_rows(load(at), alone ? W::load_words(nullptr, 0) : load(at + row));
      TILEWISE_UNROLL for (int r = 0; r < kTileRows; ++r) {
        const auto weight =
            W::broadcast_word(reinterpret_cast<const typename W::Word*>(weights + r));
        sums[r][2 * n] = W::mac(weight, pair.a, sums[r][2 * n]);
        sums[r][2 * n + 1] = W::mac(weight, pair.b, sums[r][2 * n + 1]);
      }
    }
  }

  // Vector n of row r, from pair x on.
  TILEWISE_HD static int64_t at_row(int x, int r, int n) {
    return ((x + n / 2) * kRows + r) * kPairElements + n % 2 * kLanes;
  }

  // kTileRows rows and kCount pairs from pair x on.
  template <int kCount, bool kTail, bool kAsk>
  TILEWISE_HD static void run(const Output& out, const GroupOfKeys& group, const KeyRows& v, int x,
                              int tail, NextRows& next) {
    Sums<kCount> sums;
    TILEWISE_UNROLL for (int r = 0; r < kTileRows; ++r) {
      TILEWISE_UNROLL for (int n = 0; n < 2 * kCount; ++n) {
        const float* part = out.part + at_row(x, r, n);
        sums[r][n] = group.first ? Simd::zero() : Simd::load(part);
      }
    }
    const char* at = v.first + x * E::kPairBytes;
    const float* weights = out.weights;
    constexpr int kStep = P::kInWords ? 2 : 1;
    for (int j = 0; j < group.keys; j += kStep) {
      if constexpr (kAsk && !kTail) next.template ask<kCount * kStep * E::kPairBytes>();
      if constexpr (P::kInWords) {
        add_two_keys<kCount, kTail, typename P::Policy>(sums, weights, at, v.row,
                                                        j + 1 == group.keys, tail);
      } else {
        add_key<kCount, kTail>(sums, weights, at, tail);
      }
      at += kStep * v.row;
      weights += kStep * out.width;
    }
    TILEWISE_UNROLL for (int r = 0; r < kTileRows; ++r) {
      const Vec factor = Simd::broadcast(out.factor + r);
      TILEWISE_UNROLL for (int n = 0; n < 2 * kCount; ++n) {
        const int64_t i = at_row(x, r, n);
        if (group.last) {
          Simd::store(out.o + i, Simd::fma(factor, Simd::load(out.o + i), sums[r][n]));
        } else {
          Simd::store(out.part + i, sums[r][n]);
        }
      }
    }
  }

  // kTileRows rows, all pairs.
  template <bool kAsk>
  TILEWISE_HD static void run_rows(const Output& out, const GroupOfKeys& group, const KeyRows& v,
                                   PairCount pairs, NextRows& next) {
    int x = 0;
    for (; x + kPairs <= pairs.full; x += kPairs) {
      run<kPairs, false, kAsk>(out, group, v, x, 0, next);
    }
    for (; x < pairs.full; ++x) run<1, false, kAsk>(out, group, v, x, 0, next);
    if (pairs.tail > 0) run<1, true, kAsk>(out, group, v, x, pairs.tail, next);
  }

  // All rows and pairs.
  TILEWISE_HD static void run_all(Output out, const GroupOfKeys& group, const KeyRows& v,
                                  PairCount pairs, NextRows& next) {
    run_rows<true>(out, group, v, pairs, next);
    for (int r = kTileRows; r < kRows; r += kTileRows) {
      out.o += kTileRows * kPairElements;
      out.part += kTileRows * kPairElements;
      out.factor += kTileRows;
      out.weights += kTileRows;
      run_rows<false>(out, group, v, pairs, next);
    }
  }
};

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
