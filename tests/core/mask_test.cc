// MaskSpec against brute force: which keys a row sees, and every claim of TileRange.
#include "core/mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <string>
#include <vector>

#include "core/format.h"
#include "core/random.h"

namespace tilewise {
namespace {

// The definition of docs/conventions.md, written out.
bool seen(const MaskSpec& mask, int64_t i, int64_t j, Lengths n) {
  if (i < 0 || i >= n.q || j < 0 || j >= n.k) return false;
  const int64_t center = i + (mask.align == Corner::kBottomRight ? n.k - n.q : 0);
  if (mask.window_left >= 0 && j < center - mask.window_left) return false;
  if (mask.window_right >= 0 && j > center + mask.window_right) return false;
  return true;
}

std::string text_of(const MaskSpec& mask, Lengths n) {
  return format("sq {} sk {} window {},{} {}", n.q, n.k, mask.window_left, mask.window_right,
                mask.align == Corner::kBottomRight ? "bottom right" : "top left");
}

// Calls f(mask, lengths) for every small mask.
template <class F>
void for_every_small_mask(F f) {
  for (int64_t sq = 0; sq <= 9; ++sq) {
    for (int64_t sk = 0; sk <= 9; ++sk) {
      for (int32_t left = -1; left <= 10; ++left) {
        for (int32_t right = -1; right <= 10; ++right) {
          for (const Corner corner : {Corner::kBottomRight, Corner::kTopLeft}) {
            f(MaskSpec{left, right, corner}, Lengths{sq, sk});
          }
        }
      }
    }
  }
}

// Compares a range with the sets of keys that some row and that every row of a block sees, as bits.
// Returns what is wrong, or "".
std::string wrong_in(const TileRange& r, uint32_t some, uint32_t every, int64_t length,
                     int64_t block) {
  if (r.begin > r.full_begin || r.full_begin > r.full_end || r.full_end > r.end) return "order";
  if (some == 0) return r.empty() && r.full_begin == r.full_end ? "" : "should be empty";
  const int64_t tiles = (length + block - 1) / block;
  if (r.begin < 0 || r.end > tiles) return "a tile outside the sequence";
  for (int64_t t = 0; t < tiles; ++t) {
    const uint32_t keys = ((1u << block) - 1u) << (t * block);
    const bool visited = t >= r.begin && t < r.end;
    if (visited != ((some & keys) != 0)) return format("tile {} visited: {}", t, visited);
    const bool full = (every & keys) == keys;
    if (r.is_full(t) != full) return format("tile {} full: {}", t, r.is_full(t));
  }
  return "";
}

TEST(Mask, SeesTheDefinedKeys_B127_B128_B131) {
  for_every_small_mask([](MaskSpec mask, Lengths n) {
    for (int64_t i = 0; i < n.q; ++i) {
      for (int64_t j = -2; j <= n.k + 2; ++j) {
        ASSERT_EQ(mask.visible(i, j, n), seen(mask, i, j, n))
            << text_of(mask, n) << " query " << i << " key " << j;
      }
    }
  });
}

TEST(Mask, KeysOfAndQueriesOfAreTheSameSet) {
  for_every_small_mask([](MaskSpec mask, Lengths n) {
    for (int64_t i = 0; i < n.q; ++i) {
      for (int64_t j = 0; j < n.k; ++j) {
        const Span keys = mask.keys_of(i, n), queries = mask.queries_of(j, n);
        const bool want = seen(mask, i, j, n);
        ASSERT_EQ(j >= keys.begin && j < keys.end, want) << text_of(mask, n) << " query " << i;
        ASSERT_EQ(i >= queries.begin && i < queries.end, want) << text_of(mask, n) << " key " << j;
      }
    }
  });
}

TEST(Mask, KvRangeClaimsHoldForEveryBlockOfRows) {
  for_every_small_mask([](MaskSpec mask, Lengths n) {
    for (int64_t begin = 0; begin <= n.q; ++begin) {
      uint32_t some = 0, every = ~0u;
      for (int64_t end = begin; end <= n.q + 1; ++end) {
        if (end > begin && end <= n.q) {
          uint32_t row = 0;
          for (int64_t j = 0; j < n.k; ++j) row |= uint32_t{seen(mask, end - 1, j, n)} << j;
          some |= row;
          every &= row;
        }
        for (int64_t block = 1; block <= 5; ++block) {
          const TileRange r = mask.kv_range(begin, end, n, block);
          ASSERT_EQ(wrong_in(r, some, every, n.k, block), "")
              << text_of(mask, n) << " rows " << begin << ".." << end << " block " << block;
        }
      }
    }
  });
}

TEST(Mask, QRangeClaimsHoldForEveryBlockOfKeys) {
  for_every_small_mask([](MaskSpec mask, Lengths n) {
    for (int64_t begin = 0; begin <= n.k; ++begin) {
      uint32_t some = 0, every = ~0u;
      for (int64_t end = begin; end <= n.k + 1; ++end) {
        if (end > begin && end <= n.k) {
          uint32_t column = 0;
          for (int64_t i = 0; i < n.q; ++i) column |= uint32_t{seen(mask, i, end - 1, n)} << i;
          some |= column;
          every &= column;
        }
        for (int64_t block = 1; block <= 5; ++block) {
          const TileRange r = mask.q_range(begin, end, n, block);
          ASSERT_EQ(wrong_in(r, some, every, n.q, block), "")
              << text_of(mask, n) << " keys " << begin << ".." << end << " block " << block;
        }
      }
    }
  });
}

// One row range of a larger problem, checked from the rows' own key sets.
std::string wrong_in_large(const MaskSpec& mask, Lengths n, int64_t begin, int64_t end,
                           int64_t block) {
  const TileRange r = mask.kv_range(begin, end, n, block);
  const int64_t tiles = (n.k + block - 1) / block;
  std::vector<int> some(tiles), every(tiles, 1);
  for (int64_t i = begin; i < std::min(end, n.q); ++i) {
    for (int64_t t = 0; t < tiles; ++t) {
      // A band is convex: its first and last key in the tile decide.
      int64_t hits = 0;
      for (int64_t j = t * block; j < (t + 1) * block; ++j) hits += seen(mask, i, j, n);
      some[t] |= hits > 0;
      every[t] &= hits == block;
    }
  }
  for (int64_t t = 0; t < tiles; ++t) {
    if ((t >= r.begin && t < r.end) != (some[t] != 0)) return format("tile {} visited", t);
    if (r.is_full(t) != (some[t] && every[t])) return format("tile {} full", t);
  }
  return "";
}

TEST(Mask, RandomLargerRangesHold) {
  const PhiloxStream random(20260801);
  uint64_t at = 0;
  const auto below = [&](uint32_t limit) {
    return static_cast<int64_t>(random.word(at++) % limit);
  };
  for (int trial = 0; trial < 1500; ++trial) {
    const Lengths n = {1 + below(700), 1 + below(700)};
    MaskSpec mask;
    mask.window_left = static_cast<int32_t>(below(3) == 0 ? -1 : below(1 + (1 << below(11))));
    mask.window_right = static_cast<int32_t>(below(3) == 0 ? -1 : below(1 + (1 << below(11))));
    mask.align = below(2) == 0 ? Corner::kBottomRight : Corner::kTopLeft;
    const int64_t begin = below(static_cast<uint32_t>(n.q)), end = begin + 1 + below(60);
    constexpr int64_t kBlocks[] = {8, 16, 24, 48, 64, 128};
    const int64_t block = kBlocks[below(6)];
    ASSERT_EQ(wrong_in_large(mask, n, begin, end, block), "")
        << text_of(mask, n) << " rows " << begin << ".." << end << " block " << block;
  }
}

TEST(Mask, LargestLengthsAndWindowsDoNotOverflow) {
  const int64_t huge = int64_t{1} << 40;
  const MaskSpec mask = {INT32_MAX, INT32_MAX, Corner::kBottomRight};
  const Lengths n = {huge, huge};
  EXPECT_TRUE(mask.visible(huge - 1, huge - 1, n));
  EXPECT_TRUE(mask.visible(huge - 1, huge - 1 - INT32_MAX, n));
  EXPECT_FALSE(mask.visible(huge - 1, huge - 2 - INT32_MAX, n));
  const TileRange r = mask.kv_range(0, 64, n, 64);
  EXPECT_EQ(r.begin, 0);
  EXPECT_EQ(r.end, (int64_t{INT32_MAX} + 63 + 1 + 63) / 64);
  EXPECT_EQ((MaskSpec{-1, 0, Corner::kTopLeft}.visible(5, 5, Lengths{huge, huge})), true);
}

}  // namespace
}  // namespace tilewise
