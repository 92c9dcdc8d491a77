// The first half of the decode's register tiles: scores of a few keys against all rows. Included
// once per instruction set.
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
  // The cache lines that the pair at p covers; `pair` is its index in the row. Never faults. The
  // products in words use the second level: rows 2 KiB apart push each other out of the first.
  TILEWISE_HD static void prefetch(const char* p, int pair) {
    constexpr int kLocality = Simd::kWordElements == 2 ? 2 : 3;
    if (kPairBytes >= 64 || pair * kPairBytes % 64 == 0) __builtin_prefetch(p, 0, kLocality);
    if (kPairBytes > 64) __builtin_prefetch(p + 64, 0, kLocality);
  }

 private:
  template <class T>
  TILEWISE_HD static const T* as(const char* p) {
    return reinterpret_cast<const T*>(p);
  }
};

// How the elements of a query and of a key are multiplied: as fp32.
template <DType kType, class S = Simd, bool kWords = S::kWordElements == 2 && kType == DType::kBf16>
struct Products {
  using E = Elements<kType>;
  using Operand = Pair;
  static constexpr bool kInWords = false;
  static constexpr int kQueryPair = kPairElements;  // floats that a pair of a query takes

  TILEWISE_HD static Pair key(const char* p) { return E::load(p); }
  TILEWISE_HD static Pair key(const char* p, int count) { return E::load(p, count); }
  TILEWISE_HD static Pair query(const float* p) { return Simd::load_pair_fp32(p); }
  TILEWISE_HD static void store_query(float* p, Pair x) {
    Simd::store(p, x.a);
    Simd::store(p + kLanes, x.b);
  }
  TILEWISE_HD static void multiply(Pair q, Pair k, Vec& a, Vec& b) {
    a = Simd::fma(q.a, k.a, a);
    b = Simd::fma(q.b, k.b, b);
  }
  TILEWISE_HD static void multiply(Pair q, Pair k, Vec& sum) {
    sum = Simd::fma(q.a, k.a, sum);
    sum = Simd::fma(q.b, k.b, sum);
  }
};

// As bf16, two to a word. Only where the policy has such products.
template <DType kType, class S>
struct Products<kType, S, true> {
  using Operand = typename S::Words;
  using Policy = S;
  static constexpr bool kInWords = true;
  static constexpr int kQueryPair = kLanes;

  TILEWISE_HD static Operand key(const char* p) {
    return S::load_words(reinterpret_cast<const typename S::Word*>(p));
  }
  TILEWISE_HD static Operand key(const char* p, int count) {
    return S::load_words(reinterpret_cast<const uint16_t*>(p), count);
  }
  TILEWISE_HD static Operand query(const float* p) {
    return S::load_words(reinterpret_cast<const typename S::Word*>(p));
  }
  TILEWISE_HD static void store_query(float* p, Operand x) {
    S::store_words(reinterpret_cast<typename S::Word*>(p), x);
  }
  TILEWISE_HD static void multiply(Operand q, Operand k, Vec& a, Vec&) { a = S::mac(q, k, a); }
  TILEWISE_HD static void multiply(Operand q, Operand k, Vec& sum) { sum = S::mac(q, k, sum); }
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
  using P = Products<kType>;
  using Operand = typename P::Operand;
  Vec acc[kLanes];  // (kKeys, kTileRows)
  TILEWISE_UNROLL for (int i = 0; i < kLanes; ++i) acc[i] = Simd::zero();
  // Whatever is fewer, keys or rows, stays in registers.
  const auto multiply = [&](int x, auto load) __attribute__((always_inline)) {
    const auto key = [&](int j) __attribute__((always_inline)) {
      return load(k.first + T::offset(j, k.row, k.stream) + x * E::kPairBytes);
    };
    const auto row = [&](int r) __attribute__((always_inline)) {
      return P::query(q + r * q_step + x * P::kQueryPair);
    };
    const auto add = [&](int j, int r, Operand a, Operand b) __attribute__((always_inline)) {
      P::multiply(b, a, acc[j * T::kTileRows + r]);
    };
    if constexpr (T::kKeys < T::kTileRows) {
      Operand keys[T::kKeys];
      TILEWISE_UNROLL for (int j = 0; j < T::kKeys; ++j) keys[j] = key(j);
      TILEWISE_UNROLL for (int r = 0; r < T::kTileRows; ++r) {
        const Operand query = row(r);
        TILEWISE_UNROLL for (int j = 0; j < T::kKeys; ++j) add(j, r, keys[j], query);
      }
    } else {
      Operand rows[T::kTileRows];
      TILEWISE_UNROLL for (int r = 0; r < T::kTileRows; ++r) rows[r] = row(r);
      TILEWISE_UNROLL for (int j = 0; j < T::kKeys; ++j) {
        const Operand a = key(j);
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
        x, [](const char* p) __attribute__((always_inline)) { return P::key(p); });
  }
  if (pairs.tail > 0) {
    multiply(
        pairs.full, [&](const char* p)
                        __attribute__((always_inline)) { return P::key(p, pairs.tail); });
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
  using P = Products<kType>;
  Vec acc[kLanes];  // (kKeys)
  TILEWISE_UNROLL for (int j = 0; j < T::kKeys; ++j) {
    const char* key = k.first + T::offset(j, k.row, k.stream);
    const char* value = v.first + T::offset(j, v.row, v.stream);
    Vec a = Simd::zero(), b = Simd::zero();
    for (int x = 0; x < pairs.full; ++x) {
      E::prefetch(value + x * E::kPairBytes, x);
      P::multiply(P::query(q + x * P::kQueryPair), P::key(key + x * E::kPairBytes), a, b);
    }
    if (pairs.tail > 0) {
      P::multiply(P::query(q + pairs.full * P::kQueryPair),
                  P::key(key + pairs.full * E::kPairBytes, pairs.tail), a, b);
    }
    acc[j] = Simd::add(a, b);
  }
  Simd::store(scores, Simd::sum_lanes(acc));
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
