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

// Positions count in 64 bits, and on GPUs, where that costs twice the instructions, in 32: then
// lengths and bounded windows are at most kMostInt32.
constexpr int32_t kMostInt32 = 1 << 29;

// Lengths of one sequence.
template <class Int>
struct BasicLengths {
  Int q = 0;
  Int k = 0;
};
using Lengths = BasicLengths<int64_t>;

// Tiles [begin, end) hold a visible element; those of [full_begin, full_end) hold no hidden one.
// begin <= full_begin <= full_end <= end; all four are equal when nothing is visible.
template <class Int>
struct BasicTileRange {
  Int begin = 0, full_begin = 0, full_end = 0, end = 0;

  TILEWISE_HD constexpr bool is_full(Int tile) const {
    return tile >= full_begin && tile < full_end;
  }
  TILEWISE_HD constexpr bool empty() const { return begin == end; }
  bool operator==(const BasicTileRange&) const = default;
};
using TileRange = BasicTileRange<int64_t>;

// Half-open range of positions; empty when begin == end.
template <class Int>
struct BasicSpan {
  Int begin = 0, end = 0;
};
using Span = BasicSpan<int64_t>;

// A parameter of this type takes no part in the deduction of Int.
template <class Int>
struct NotDeduced {
  using Type = Int;
};
template <class Int>
using Position = typename NotDeduced<Int>::Type;

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
  template <class Int>
  TILEWISE_HD constexpr Int diagonal(BasicLengths<Int> n) const {
    return align == Corner::kBottomRight ? n.k - n.q : 0;
  }

  template <class Int>
  TILEWISE_HD constexpr bool visible(Position<Int> q, Position<Int> k, BasicLengths<Int> n) const {
    const BasicSpan<Int> keys = keys_of(q, n);
    return k >= keys.begin && k < keys.end;
  }

  // Keys that query q sees.
  template <class Int>
  TILEWISE_HD constexpr BasicSpan<Int> keys_of(Position<Int> q, BasicLengths<Int> n) const {
    return band<Int>(q + diagonal(n), window_left, window_right, n.k);
  }
  // Queries that see key k.
  template <class Int>
  TILEWISE_HD constexpr BasicSpan<Int> queries_of(Position<Int> k, BasicLengths<Int> n) const {
    return band<Int>(k - diagonal(n), window_right, window_left, n.q);
  }

  // Tiles of block_n keys for the query rows [q_begin, q_end): the forward loop, and dQ.
  template <class Int>
  TILEWISE_HD constexpr BasicTileRange<Int> kv_range(Position<Int> q_begin, Position<Int> q_end,
                                                     BasicLengths<Int> n,
                                                     Position<Int> block_n) const {
    if (q_end > n.q) q_end = n.q;
    if (q_begin >= q_end) return {};
    return tiles(keys_of(q_begin, n), keys_of(q_end - 1, n), block_n);
  }

  // Tiles of block_m query rows for the keys [k_begin, k_end): the dK and dV loop.
  template <class Int>
  TILEWISE_HD constexpr BasicTileRange<Int> q_range(Position<Int> k_begin, Position<Int> k_end,
                                                    BasicLengths<Int> n,
                                                    Position<Int> block_m) const {
    if (k_end > n.k) k_end = n.k;
    if (k_begin >= k_end) return {};
    return tiles(queries_of(k_begin, n), queries_of(k_end - 1, n), block_m);
  }

 private:
  // [center - before, center + after], cut to [0, length). The begin of an empty band on the left
  // is 0 and on the right length, so that first.begin and last.end bound the union below.
  template <class Int>
  TILEWISE_HD static constexpr BasicSpan<Int> band(Int center, Int before, Int after, Int length) {
    Int begin = before == kUnbounded ? 0 : center - before;
    Int end = after == kUnbounded ? length : center + after + 1;
    begin = begin < 0 ? 0 : begin > length ? length : begin;
    end = end < 0 ? 0 : end > length ? length : end;
    return {begin, end};
  }

  // The bands of consecutive rows move by one element at most, so together they cover
  // [first.begin, last.end) without a gap, and all of them cover [last.begin, first.end).
  template <class Int>
  TILEWISE_HD static constexpr BasicTileRange<Int> tiles(BasicSpan<Int> first, BasicSpan<Int> last,
                                                         Position<Int> block) {
    if (first.begin >= last.end) return {};
    BasicTileRange<Int> r;
    r.begin = first.begin / block;
    r.end = (last.end + block - 1) / block;
    r.full_begin = (last.begin + block - 1) / block;
    r.full_end = first.end / block;
    if (r.full_end <= r.full_begin) r.full_begin = r.full_end = r.end;
    return r;
  }
};

}  // namespace tilewise
