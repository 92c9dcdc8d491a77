// The register tiles of the decode: scores of a few keys against all rows, and O += weights * V.
// Included once per instruction set.
#include "cpu/decode.h"

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

using Pair = Simd::Pair;
constexpr int kPairElements = 2 * kLanes;

template <DType kType>
struct Elements {
  static constexpr int kSize = kType == DType::kFp32 ? 4 : 2;
  static constexpr int kPairBytes = kSize * kPairElements;

  TILEWISE_HD static Pair load(const char* p) {
    if constexpr (kType == DType::kFp32) return Simd::load_pair_fp32(as<float>(p));
    if constexpr (kType == DType::kFp16) return Simd::load_pair_fp16(as<uint16_t>(p));
    if constexpr (kType == DType::kBf16) return Simd::load_pair_bf16(as<uint16_t>(p));
  }
  TILEWISE_HD static Pair load(const char* p, int count) {
    if constexpr (kType == DType::kFp32) return Simd::load_pair_fp32(as<float>(p), count);
    if constexpr (kType == DType::kFp16) return Simd::load_pair_fp16(as<uint16_t>(p), count);
    if constexpr (kType == DType::kBf16) return Simd::load_pair_bf16(as<uint16_t>(p), count);
  }
  TILEWISE_HD static void store(char* p, Pair x, int count) {
    if constexpr (kType == DType::kBf16) x = Simd::in_order_bf16(x);
    if (count == kPairElements) {
      store_elements(p, 0, kType, x.a);
      store_elements(p, kLanes, kType, x.b);
      return;
    }
    float buffer[kPairElements];
    Simd::store(buffer, x.a);
    Simd::store(buffer + kLanes, x.b);
    for (int i = 0; i < count; ++i) store_element(p, i, kType, buffer[i]);
  }
  // The cache lines that the pair at p covers; `pair` is its index in the row. Never faults.
  TILEWISE_HD static void prefetch(const char* p, int pair) {
    if (kPairBytes >= 64 || pair * kPairBytes % 64 == 0) __builtin_prefetch(p);
    if (kPairBytes > 64) __builtin_prefetch(p + 64);
  }

 private:
  template <class T>
  TILEWISE_HD static const T* as(const char* p) {
    return reinterpret_cast<const T*>(p);
  }
};

// Rows of K or V in the order in which a block takes them: Tile::kStreams runs of keys, `stream`
// bytes apart, side by side. With stream = kRun * row they are one run.
struct KeyRows {
  const char* first;
  int64_t row, stream;  // bytes
};

// How a tile of kLanes scores divides into keys and rows. A step takes kRun keys of every stream.
template <int kRows>
struct Tile {
  // One row leaves the core waiting for memory, and then one run of whole rows arrives fastest;
  // with more rows, four runs at once hide the work better (docs/tuning/cpu.md).
  static constexpr int kStreams = kRows == 1 ? 1 : 4;
  static constexpr int kTileRows = kRows < kLanes ? kRows : kLanes;
  static constexpr int kRowTiles = kRows / kTileRows;
  static constexpr int kKeys = kLanes / kTileRows;
  static constexpr int kSegments = kKeys < kStreams ? kKeys : kStreams;
  static constexpr int kRun = kKeys / kSegments;
  static constexpr int kTilesPerStep = kStreams / kSegments;
  static constexpr int kStepKeys = kStreams * kRun;

  // Of key `key` of the tile, relative to its first.
  TILEWISE_HD static constexpr int64_t offset(int key, int64_t row, int64_t stream) {
    return key / kRun * stream + key % kRun * row;
  }
};

struct PairCount {
  int32_t full, tail;  // whole pairs, and elements after them
  TILEWISE_HD constexpr explicit PairCount(int32_t elements)
      : full(elements / kPairElements), tail(elements % kPairElements) {}
};

// One tile's scores, unscaled, of kTileRows rows; prefetches the same rows of V.
template <DType kType, int kRows, bool kPrefetch>
TILEWISE_HD void score_tile(const float* q, int64_t q_step, const KeyRows& k, const KeyRows& v,
                            PairCount pairs, float* scores) {
  using T = Tile<kRows>;
  using E = Elements<kType>;
  Vec acc[kLanes];  // (kKeys, kTileRows)
  TILEWISE_UNROLL for (int i = 0; i < kLanes; ++i) acc[i] = Simd::zero();
  // Whatever is fewer, keys or rows, stays in registers.
  const auto multiply = [&](int x, auto load) __attribute__((always_inline)) {
    const auto key = [&](int j) __attribute__((always_inline)) {
      return load(k.first + T::offset(j, k.row, k.stream) + x * E::kPairBytes);
    };
    const auto row = [&](int r) __attribute__((always_inline)) {
      return Simd::load_pair_fp32(q + r * q_step + x * kPairElements);
    };
    const auto add = [&](int j, int r, Pair a, Pair b) __attribute__((always_inline)) {
      Vec& sum = acc[j * T::kTileRows + r];
      sum = Simd::fma(b.a, a.a, sum);
      sum = Simd::fma(b.b, a.b, sum);
    };
    if constexpr (T::kKeys < T::kTileRows) {
      Pair keys[T::kKeys];
      TILEWISE_UNROLL for (int j = 0; j < T::kKeys; ++j) keys[j] = key(j);
      TILEWISE_UNROLL for (int r = 0; r < T::kTileRows; ++r) {
        const Pair query = row(r);
        TILEWISE_UNROLL for (int j = 0; j < T::kKeys; ++j) add(j, r, keys[j], query);
      }
    } else {
      Pair rows[T::kTileRows];
      TILEWISE_UNROLL for (int r = 0; r < T::kTileRows; ++r) rows[r] = row(r);
      TILEWISE_UNROLL for (int j = 0; j < T::kKeys; ++j) {
        const Pair a = key(j);
        TILEWISE_UNROLL for (int r = 0; r < T::kTileRows; ++r) add(j, r, a, rows[r]);
      }
    }
  };
  for (int x = 0; x < pairs.full; ++x) {
    if (kPrefetch) {
      TILEWISE_UNROLL for (int j = 0; j < T::kKeys; ++j) {
        E::prefetch(v.first + T::offset(j, v.row, v.stream) + x * E::kPairBytes, x);
      }
    }
    multiply(
        x, [](const char* p) __attribute__((always_inline)) { return E::load(p); });
  }
  if (pairs.tail > 0) {
    multiply(
        pairs.full, [&](const char* p)
                        __attribute__((always_inline)) { return E::load(p, pairs.tail); });
  }
  Simd::store(scores, Simd::sum_lanes(acc));
}

// The same for a single row, whose keys are taken one after the other, so that memory is read in
// the order in which it lies.
template <DType kType>
TILEWISE_HD void score_one_row(const float* q, const KeyRows& k, const KeyRows& v, PairCount pairs,
                               float* scores) {
  using T = Tile<1>;
  using E = Elements<kType>;
  Vec acc[kLanes];  // (kKeys)
  TILEWISE_UNROLL for (int j = 0; j < T::kKeys; ++j) {
    const char* key = k.first + T::offset(j, k.row, k.stream);
    const char* value = v.first + T::offset(j, v.row, v.stream);
    Vec a = Simd::zero(), b = Simd::zero();
    for (int x = 0; x < pairs.full; ++x) {
      E::prefetch(value + x * E::kPairBytes, x);
      const Pair element = E::load(key + x * E::kPairBytes);
      a = Simd::fma(Simd::load(q + x * kPairElements), element.a, a);
      b = Simd::fma(Simd::load(q + x * kPairElements + kLanes), element.b, b);
    }
    if (pairs.tail > 0) {
      const Pair element = E::load(key + pairs.full * E::kPairBytes, pairs.tail);
      a = Simd::fma(Simd::load(q + pairs.full * kPairElements), element.a, a);
      b = Simd::fma(Simd::load(q + pairs.full * kPairElements + kLanes), element.b, b);
    }
    acc[j] = Simd::add(a, b);
  }
  Simd::store(scores, Simd::sum_lanes(acc));
}

// Rows and pairs of one pass over V: as many accumulators as the registers hold.
template <int kRows>
struct OutputTile {
  static constexpr int kMostRows = kLanes >= 16 ? 8 : 4;
  static constexpr int kTileRows = kRows < kMostRows ? kRows : kMostRows;
  static constexpr int kPairs = kMostRows / kTileRows < 4 ? kMostRows / kTileRows : 4;
};

// o[row][pairs] = factor[row] * o + sum over the block's keys of weight * v, for kTileRows rows and
// kPairs pairs from pair x on; kTail > 0 elements of the last one. Prefetches the same part of the
// rows of `next`.
template <DType kType, int kRows, int kPairs, bool kTail>
TILEWISE_HD void accumulate_tile(float* o, int64_t o_step, const float* factor,
                                 const float* weights, int steps, int64_t step_bytes, KeyRows v,
                                 KeyRows next, int64_t next_step, int x, int tail) {
  using T = Tile<kRows>;
  constexpr int kTileRows = OutputTile<kRows>::kTileRows;
  using E = Elements<kType>;
  Vec acc[kTileRows][2 * kPairs];
  TILEWISE_UNROLL for (int r = 0; r < kTileRows; ++r) {
    TILEWISE_UNROLL for (int n = 0; n < 2 * kPairs; ++n) acc[r][n] = Simd::zero();
  }
  const char* at = v.first + x * E::kPairBytes;
  const char* ahead = next.first + x * E::kPairBytes;
  for (int step = 0; step < steps; ++step) {
    TILEWISE_UNROLL for (int j = 0; j < T::kStepKeys; ++j) {
      const char* value = at + T::offset(j, v.row, v.stream);
      TILEWISE_UNROLL for (int n = 0; n < kPairs; ++n) {
        if (!kTail) {
          E::prefetch(ahead + T::offset(j, next.row, next.stream) + n * E::kPairBytes, x + n);
        }
        const Pair w = kTail ? E::load(value, tail) : E::load(value + n * E::kPairBytes);
        TILEWISE_UNROLL for (int r = 0; r < kTileRows; ++r) {
          const Vec weight = Simd::broadcast(weights + j * kRows + r);
          acc[r][2 * n] = Simd::fma(weight, w.a, acc[r][2 * n]);
          acc[r][2 * n + 1] = Simd::fma(weight, w.b, acc[r][2 * n + 1]);
        }
      }
    }
    at += step_bytes;
    ahead += next_step;
    weights += T::kStepKeys * kRows;
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
