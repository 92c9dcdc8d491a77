// MaskSpec: which keys a query sees, and which tiles a kernel must visit.
//
// Nothing else in the library knows what "causal" means. A kernel asks for a range of tiles, takes
// the tiles of [full_begin, full_end) without an element test, and calls visible() in the others.
#pragma once

#include <cstdint>

#include "core/hd.h"

namespace tilewise {

constexpr int32_t kUnbounded = -1;

// Where the diagonal of a sq x sk score matrix ends.
enum class Corner : int32_t { kBottomRight = 0, kTopLeft = 1 };

// Lengths of one sequence.
struct Lengths {
  int64_t q = 0;
  int64_t k = 0;
};

// Tiles [begin, end) hold a visible element; those of [full_begin, full_end) hold no hidden one.
// begin <= full_begin <= full_end <= end; all four are equal when nothing is visible.
struct TileRange {
  int64_t begin = 0, full_begin = 0, full_end = 0, end = 0;

  TILEWISE_HD constexpr bool is_full(int64_t tile) const {
    return tile >= full_begin && tile < full_end;
  }
  TILEWISE_HD constexpr bool empty() const { return begin == end; }
  bool operator==(const TileRange&) const = default;
};

// Half-open range of positions; empty when begin == end.
struct Span {
  int64_t begin = 0, end = 0;
};

struct MaskSpec {
  int32_t window_left = kUnbounded;   // keys before the diagonal that are visible, inclusive
  int32_t window_right = kUnbounded;  // keys after it; causal is 0
  Corner align = Corner::kBottomRight;

  bool operator==(const MaskSpec&) const = default;

  TILEWISE_HD constexpr bool is_full() const {
    return window_left == kUnbounded && window_right == kUnbounded;
  }
  TILEWISE_HD constexpr bool is_causal() const { return window_right == 0; }

  // Key j lies on the diagonal of query i iff j == i + diagonal(n).
  TILEWISE_HD constexpr int64_t diagonal(Lengths n) const {
    return align == Corner::kBottomRight ? n.k - n.q : 0;
  }

  TILEWISE_HD constexpr bool visible(int64_t q, int64_t k, Lengths n) const {
    const Span keys = keys_of(q, n);
    return k >= keys.begin && k < keys.end;
  }

  // Keys that query q sees.
  TILEWISE_HD constexpr Span keys_of(int64_t q, Lengths n) const {
    return band(q + diagonal(n), window_left, window_right, n.k);
  }
  // Queries that see key k.
  TILEWISE_HD constexpr Span queries_of(int64_t k, Lengths n) const {
    return band(k - diagonal(n), window_right, window_left, n.q);
  }

  // Tiles of block_n keys for the query rows [q_begin, q_end): the forward loop, and dQ.
  TILEWISE_HD constexpr TileRange kv_range(int64_t q_begin, int64_t q_end, Lengths n,
                                           int64_t block_n) const {
    if (q_end > n.q) q_end = n.q;
    if (q_begin >= q_end) return {};
    return tiles(keys_of(q_begin, n), keys_of(q_end - 1, n), block_n);
  }

  // Tiles of block_m query rows for the keys [k_begin, k_end): the dK and dV loop.
  TILEWISE_HD constexpr TileRange q_range(int64_t k_begin, int64_t k_end, Lengths n,
                                          int64_t block_m) const {
    if (k_end > n.k) k_end = n.k;
    if (k_begin >= k_end) return {};
    return tiles(queries_of(k_begin, n), queries_of(k_end - 1, n), block_m);
  }

 private:
  // [center - before, center + after], cut to [0, length). The begin of an empty band on the left
  // is 0 and on the right length, so that first.begin and last.end bound the union below.
  TILEWISE_HD static constexpr Span band(int64_t center, int64_t before, int64_t after,
                                         int64_t length) {
    int64_t begin = before == kUnbounded ? 0 : center - before;
    int64_t end = after == kUnbounded ? length : center + after + 1;
    begin = begin < 0 ? 0 : begin > length ? length : begin;
    end = end < 0 ? 0 : end > length ? length : end;
    return {begin, end};
  }

  // The bands of consecutive rows move by one element at most, so together they cover
  // [first.begin, last.end) without a gap, and all of them cover [last.begin, first.end).
  TILEWISE_HD static constexpr TileRange tiles(Span first, Span last, int64_t block) {
    if (first.begin >= last.end) return {};
    TileRange r;
    r.begin = first.begin / block;
    r.end = (last.end + block - 1) / block;
    r.full_begin = (last.begin + block - 1) / block;
    r.full_end = first.end / block;
    if (r.full_end <= r.full_begin) r.full_begin = r.full_end = r.end;
    return r;
  }
};

}  // namespace tilewise
