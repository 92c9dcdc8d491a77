// The second half of the decode's register tiles: O += weights * V. Included once per instruction
// set.
#include "cpu/decode_tiles.inl"

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

// Rows and pairs of one pass over V: as many accumulators as the registers hold.
template <int kRows>
struct OutputTile {
  static constexpr int kMostRows = kLanes >= 16 ? 8 : 4;
  static constexpr int kTileRows = kRows < kMostRows ? kRows : kMostRows;
  static constexpr int kPairs = kMostRows / kTileRows < 4 ? kMostRows / kTileRows : 4;
};

// Weights of a step's keys as words: two keys share the words at the earlier one's weights.
template <int kRows>
struct KeyPair {
  // Halves of a vector, or two whole vectors where one key fills them.
  static constexpr int kApart = Tile<kRows>::kKeys > 1 ? Tile<kRows>::kKeys / 2 : 1;
  static constexpr int kCount = Tile<kRows>::kStepKeys / 2;
  TILEWISE_HD static constexpr int first(int pair) {
    return pair / kApart * 2 * kApart + pair % kApart;
  }
};

// acc += weights * v for one step and kPairs pairs, in words.
template <DType kType, int kRows, int kPairs, bool kTail>
TILEWISE_HD void accumulate_words(Vec (&acc)[OutputTile<kRows>::kTileRows][2 * kPairs],
                                  const float* weights, const char* at, const KeyRows& v,
                                  const char* ahead, const KeyRows& next, int x, int tail) {
  using T = Tile<kRows>;
  using E = Elements<kType>;
  using P = Products<kType>;
  using S = typename P::Policy;
  using K = KeyPair<kRows>;
  TILEWISE_UNROLL for (int pair = 0; pair < K::kCount; ++pair) {
    const int j = K::first(pair), k = j + K::kApart;
    const char* value = at + T::offset(j, v.row, v.stream);
    const char* other = at + T::offset(k, v.row, v.stream);
    TILEWISE_UNROLL for (int n = 0; n < kPairs; ++n) {
      const int byte = n * E::kPairBytes;
      if (!kTail) {
        E::prefetch(ahead + T::offset(j, next.row, next.stream) + byte, x + n);
        E::prefetch(ahead + T::offset(k, next.row, next.stream) + byte, x + n);
      }
      const auto w = kTail ? S::pair_rows(P::key(value, tail), P::key(other, tail))
                           : S::pair_rows(P::key(value + byte), P::key(other + byte));
      TILEWISE_UNROLL for (int r = 0; r < OutputTile<kRows>::kTileRows; ++r) {
        const auto weight =
            S::broadcast_word(reinterpret_cast<const typename S::Word*>(weights + j * kRows + r));
        acc[r][2 * n] = S::mac(weight, w.a, acc[r][2 * n]);
        acc[r][2 * n + 1] = S::mac(weight, w.b, acc[r][2 * n + 1]);
      }
    }
  }
}

// acc += weights * v for one step and kPairs pairs, in fp32.
template <DType kType, int kRows, int kPairs, bool kTail>
TILEWISE_HD void accumulate_floats(Vec (&acc)[OutputTile<kRows>::kTileRows][2 * kPairs],
                                   const float* weights, const char* at, const KeyRows& v,
                                   const char* ahead, const KeyRows& next, int x, int tail) {
  using T = Tile<kRows>;
  using E = Elements<kType>;
  TILEWISE_UNROLL for (int j = 0; j < T::kStepKeys; ++j) {
    const char* value = at + T::offset(j, v.row, v.stream);
    TILEWISE_UNROLL for (int n = 0; n < kPairs; ++n) {
      if (!kTail) {
        E::prefetch(ahead + T::offset(j, next.row, next.stream) + n * E::kPairBytes, x + n);
      }
      const Pair w = kTail ? E::load(value, tail) : E::load(value + n * E::kPairBytes);
      TILEWISE_UNROLL for (int r = 0; r < OutputTile<kRows>::kTileRows; ++r) {
        const Vec weight = Simd::broadcast(weights + j * kRows + r);
        acc[r][2 * n] = Simd::fma(weight, w.a, acc[r][2 * n]);
        acc[r][2 * n + 1] = Simd::fma(weight, w.b, acc[r][2 * n + 1]);
      }
    }
  }
}

// o[row][pairs] = factor[row] * o + sum over the block's keys of weight * v, for kTileRows rows and
// kPairs pairs from pair x on; kTail > 0 elements of the last one. Prefetches the same part of the
// rows of `next`.
template <DType kType, int kRows, int kPairs, bool kTail>
TILEWISE_HD void accumulate_tile(float* o, int64_t o_step, const float* factor,
                                 const float* weights, int steps, int64_t step_bytes, KeyRows v,
                                 KeyRows next, int64_t next_step, int x, int tail) {
  using E = Elements<kType>;
  constexpr int kTileRows = OutputTile<kRows>::kTileRows;
  Vec acc[kTileRows][2 * kPairs];
  TILEWISE_UNROLL for (int r = 0; r < kTileRows; ++r) {
    TILEWISE_UNROLL for (int n = 0; n < 2 * kPairs; ++n) acc[r][n] = Simd::zero();
  }
  const char* at = v.first + x * E::kPairBytes;
  const char* ahead = next.first + x * E::kPairBytes;
  for (int step = 0; step < steps; ++step) {
    if constexpr (Products<kType>::kInWords) {
      accumulate_words<kType, kRows, kPairs, kTail>(acc, weights, at, v, ahead, next, x, tail);
    } else {
      accumulate_floats<kType, kRows, kPairs, kTail>(acc, weights, at, v, ahead, next, x, tail);
    }
    at += step_bytes;
    ahead += next_step;
    weights += Tile<kRows>::kStepKeys * kRows;
  }
  TILEWISE_UNROLL for (int r = 0; r < kTileRows; ++r) {
    const Vec f = Simd::broadcast(factor + r);
    TILEWISE_UNROLL for (int n = 0; n < 2 * kPairs; ++n) {
      float* out = o + r * o_step + x * kPairElements + n * kLanes;
      Simd::store(out, Simd::fma(f, Simd::load(out), acc[r][n]));
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
