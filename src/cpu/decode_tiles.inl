// The scores of the decode: products of queries and keys in registers. Included once per
// instruction set.
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

 private:
  template <class T>
  TILEWISE_HD static const T* as(const char* p) {
    return reinterpret_cast<const T*>(p);
  }
};

// A dot product runs in sixteen lanes whatever the width of a vector, and all kernels add these in
// the same order: fp32 results are the same bits for every instruction set. 16-bit types, where the
// vectors hold the elements in different orders, use one vector.
constexpr int kSumLanes = 16;
template <DType kType>
constexpr int kParts = kType == DType::kFp32 ? kSumLanes / kLanes : 1;

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
  // `sum` += the products of pair x.
  TILEWISE_HD static void multiply(Pair q, Pair k, int x, Vec (&sum)[kParts<kType>]) {
    add<S>(q.a, k.a, sum[2 * x % kParts<kType>]);
    add<S>(q.b, k.b, sum[(2 * x + 1) % kParts<kType>]);
  }

 private:
  // By mac(): g++ would fold the load of a query into every FMA, which is more loads than the two a
  // clock there are.
  template <class W>
  TILEWISE_HD static void add(Vec q, Vec k, Vec& sum) {
    if constexpr (W::kWordElements == 1) sum = W::mac(q, k, sum);
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
  TILEWISE_HD static void multiply(Operand q, Operand k, int, Vec (&sum)[1]) {
    sum[0] = S::mac(q, k, sum[0]);
  }
};

struct PairCount {
  int32_t full, tail;  // whole pairs, and elements after them
  TILEWISE_HD constexpr explicit PairCount(int32_t elements)
      : full(elements / kPairElements), tail(elements % kPairElements) {}
};

// Rows of K or V, `row` bytes apart.
struct KeyRows {
  const char* first;
  int64_t row;
};

// Bytes of K or V: what all heads of a task read in turn, and how far ahead of use they ask for it.
// Measured (docs/tuning/cpu.md). With many rows a head takes a whole block, so that its queries and
// output stay near.
struct Reach {
  int64_t turn, ahead;
};
constexpr Reach reach(int rows, int heads, bool in_turns) {
  if (in_turns) return {4096, 4096};
  if (heads == 1) return {16384, 8192};
  if (rows == 1) return {8192, 8192};
  return rows < 8 ? Reach{16384, 16384} : Reach{65536, 65536};
}

// The rows of K or V that a task will read next, in the order in which they lie in memory: all
// heads of a key, then the next key. Whoever uses a piece of a row asks for as large a piece of
// these (docs/tuning/cpu.md). A prefetch never faults.
struct NextRows {
  const char* row;
  int32_t bytes;  // of a row
  int32_t heads;
  int64_t head,
      wrap;  // bytes to the row of the next head, and from the last to the next key's first
  int32_t offset = 0, at_head = 0;

  template <int kBytes>
  TILEWISE_HD void ask() {
    ask_at<kBytes>(row, offset);
    offset += kBytes;
    if (offset < bytes) return;
    offset = 0;
    take();
  }
  // A whole row, which the caller asks for a piece at a time.
  TILEWISE_HD const char* take() {
    const char* const taken = row;
    const bool last = ++at_head == heads;
    row += last ? wrap : head;
    at_head = last ? 0 : at_head;
    return taken;
  }
  template <int kBytes>
  TILEWISE_HD static void ask_at(const char* row, int64_t offset) {
    if (kBytes >= 64 || offset % 64 == 0) {
      TILEWISE_UNROLL for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(row + offset + i);
    }
  }
};

// Lane i of the result is the sum of all lanes of sums[i]: lane n with n + 8 first, then
// neighbours.
template <int kCount>
TILEWISE_HD Vec total(const Vec (&sums)[kLanes][kCount]) {
  Vec low[kLanes];
  TILEWISE_UNROLL for (int i = 0; i < kLanes; ++i) {
    low[i] = kCount == 1 ? sums[i][0] : Simd::add(sums[i][0], sums[i][kCount / 2]);
  }
  if constexpr (kCount <= 2) return Simd::sum_lanes(low);
  if constexpr (kCount == 4) {
    Vec high[kLanes];
    for (int i = 0; i < kLanes; ++i) high[i] = Simd::add(sums[i][1], sums[i][3]);
    return Simd::add(Simd::sum_lanes(low), Simd::sum_lanes(high));
  }
}

// sum += one query times one key. Queries lie as (pairs, kRows, elements of a pair).
template <DType kType, int kRows>
TILEWISE_HD void multiply_row(const float* q, const char* key, PairCount pairs, NextRows* next,
                              Vec (&sum)[kParts<kType>]) {
  using E = Elements<kType>;
  using P = Products<kType>;
  for (int x = 0; x < pairs.full; ++x) {
    const char* at = key + x * E::kPairBytes;
    if (next != nullptr) next->ask<E::kPairBytes>();
    P::multiply(P::query(q + x * kRows * P::kQueryPair), P::key(at), x, sum);
  }
  if (pairs.tail > 0) {
    P::multiply(P::query(q + pairs.full * kRows * P::kQueryPair),
                P::key(key + pairs.full * E::kPairBytes, pairs.tail), pairs.full, sum);
  }
}

// kLanes scores: of a few keys and rows.
template <DType kType, int kRows>
struct ScoreTile {
  static constexpr int kMostRows = kLanes >= 16 ? 8 : 4;
  static constexpr int kTileRows = kRows < kMostRows ? kRows : kMostRows;
  static constexpr int kKeys = kLanes / kTileRows;
  // Keys whose sums are in registers at a time.
  static constexpr int kAtOnce = kKeys > kParts<kType> ? kKeys / kParts<kType> : 1;

  using E = Elements<kType>;
  using P = Products<kType>;
  using Operand = typename P::Operand;
  using Sums = Vec[kLanes][kParts<kType>];  // (kKeys, kTileRows)

  // Of keys [key, key + kAtOnce). kFull: pairs.full, where it is to be unrolled, or 0.
  template <int kFull, bool kAsk>
  TILEWISE_HD static void multiply(const float* q, const KeyRows& k, PairCount pairs, int key,
                                   NextRows& next, Sums& sums) {
    [[maybe_unused]] const char* ahead[kAtOnce];
    if constexpr (kAsk && kFull > 0) {
      TILEWISE_UNROLL for (int j = 0; j < kAtOnce; ++j) ahead[j] = next.take();
    }
    const auto pair = [&](int x, auto load) __attribute__((always_inline)) {
      const auto of_key = [&](int j) __attribute__((always_inline)) {
        return load(k.first + (key + j) * k.row + x * E::kPairBytes);
      };
      const auto of_row = [&](int r) __attribute__((always_inline)) {
        return P::query(q + (x * kRows + r) * P::kQueryPair);
      };
      // Whatever is fewer, keys or rows, stays in registers.
      if constexpr (kAtOnce < kTileRows) {
        Operand keys[kAtOnce];
        TILEWISE_UNROLL for (int j = 0; j < kAtOnce; ++j) keys[j] = of_key(j);
        TILEWISE_UNROLL for (int r = 0; r < kTileRows; ++r) {
          const Operand query = of_row(r);
          TILEWISE_UNROLL for (int j = 0; j < kAtOnce; ++j) {
            P::multiply(query, keys[j], x, sums[(key + j) * kTileRows + r]);
          }
        }
      } else {
        Operand rows[kTileRows];
        TILEWISE_UNROLL for (int r = 0; r < kTileRows; ++r) rows[r] = of_row(r);
        TILEWISE_UNROLL for (int j = 0; j < kAtOnce; ++j) {
          const Operand a = of_key(j);
          TILEWISE_UNROLL for (int r = 0; r < kTileRows; ++r) {
            P::multiply(rows[r], a, x, sums[(key + j) * kTileRows + r]);
          }
        }
      }
    };
    const auto whole = [&](int x) __attribute__((always_inline)) {
      if constexpr (kAsk && kFull > 0) {
        TILEWISE_UNROLL for (int j = 0; j < kAtOnce; ++j) {
          const int i = x * kAtOnce + j;  // in the order of memory
          NextRows::ask_at<E::kPairBytes>(ahead[i / kFull], i % kFull * E::kPairBytes);
        }
      } else if constexpr (kAsk) {
        next.template ask<kAtOnce * E::kPairBytes>();
      }
      pair(
          x, [](const char* p) __attribute__((always_inline)) { return P::key(p); });
    };
    if constexpr (kFull > 0) {
      TILEWISE_UNROLL for (int x = 0; x < kFull; ++x) whole(x);
    } else {
      for (int x = 0; x < pairs.full; ++x) whole(x);
      if (pairs.tail == 0) return;
      pair(
          pairs.full, [&](const char* p)
                          __attribute__((always_inline)) { return P::key(p, pairs.tail); });
    }
  }

  // Raw scores of kKeys keys, `width` floats apart.
  template <int kFull, bool kAsk>
  TILEWISE_HD static void run(const float* q, const KeyRows& k, PairCount pairs, NextRows& next,
                              float* scores, int64_t width) {
    Sums sums;
    TILEWISE_UNROLL for (int i = 0; i < kLanes; ++i) {
      TILEWISE_UNROLL for (int n = 0; n < kParts<kType>; ++n) sums[i][n] = Simd::zero();
    }
    TILEWISE_UNROLL for (int key = 0; key < kKeys; key += kAtOnce) {
      multiply<kFull, kAsk>(q, k, pairs, key, next, sums);
    }
    const Vec all = total(sums);
    if (kTileRows == kLanes || width == kTileRows) return Simd::store(scores, all);
    if constexpr (kTileRows < kLanes) Simd::store_groups<kTileRows>(scores, width, all);
  }
};

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
