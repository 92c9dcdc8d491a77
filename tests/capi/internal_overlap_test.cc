// disjoint() against the set of bytes each tensor touches: it may never say yes to two that share a
// byte, and must say yes to gradients packed in one buffer.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "core/overlap.h"

namespace tilewise {
namespace {

struct Tensor {
  uintptr_t address = 4096;
  Extents extents;
  Strides strides;
  int element_bytes = 1;

  Footprint footprint() const {
    return footprint_of(reinterpret_cast<void*>(address), extents, strides, element_bytes);
  }
  std::set<uintptr_t> bytes() const {
    std::set<uintptr_t> all;
    for (int64_t b = 0; b < extents.batch; ++b) {
      for (int64_t s = 0; s < extents.seqlen; ++s) {
        for (int64_t h = 0; h < extents.heads; ++h) {
          const uintptr_t row =
              address +
              static_cast<uintptr_t>((b * strides.batch + s * strides.seqlen + h * strides.head) *
                                     element_bytes);
          for (int64_t i = 0; i < extents.dim * element_bytes; ++i) all.insert(row + i);
        }
      }
    }
    return all;
  }
};

bool share_a_byte(const Tensor& a, const Tensor& b) {
  const auto bytes = a.bytes();
  for (const uintptr_t byte : b.bytes()) {
    if (bytes.contains(byte)) return true;
  }
  return false;
}

TEST(Overlap, RangeIsThatOfTheBytes) {
  std::mt19937 random(std::random_device{}());
  const auto up_to = [&](int n) { return static_cast<int64_t>(random() % (n + 1)); };
  for (int i = 0; i < 3000; ++i) {
    const Tensor t{4096 + random() % 64,
                   {up_to(3), up_to(3), up_to(3), up_to(4)},
                   {up_to(40), up_to(20), up_to(10)},
                   1 << (random() % 4)};
    const auto bytes = t.bytes();
    const Footprint f = t.footprint();
    ASSERT_EQ(f.bytes == 0, bytes.empty());
    if (bytes.empty()) continue;
    ASSERT_EQ(f.begin, *bytes.begin());
    ASSERT_EQ(f.end(), *bytes.rbegin() + 1);
    ASSERT_FALSE(f.overflow);
  }
}

TEST(Overlap, NeverDisjointWhenAByteIsShared) {
  std::mt19937 random(std::random_device{}());
  const auto up_to = [&](int n) { return static_cast<int64_t>(random() % (n + 1)); };
  int disjoint_inside = 0;  // the ranges meet, and yet the answer is yes
  for (int i = 0; i < 100000; ++i) {
    // Strides that are often multiples of each other, as real ones are.
    const int64_t unit = 1 + up_to(3), pitch = unit * (1 + up_to(4)),
                  plane = pitch * (1 + up_to(3));
    const int64_t strides[] = {0, unit, pitch, plane, pitch + 1, plane * 2};
    const auto any = [&] { return strides[random() % 6]; };
    const Tensor a{4096,
                   {1 + up_to(2), 1 + up_to(3), 1 + up_to(2), 1 + up_to(3)},
                   {any(), any(), any()},
                   1 << (random() % 3)};
    Tensor b{4096 + static_cast<uintptr_t>(up_to(30)),
             {1 + up_to(2), 1 + up_to(3), 1 + up_to(2), 1 + up_to(3)},
             {any(), any(), any()},
             a.element_bytes};
    const bool said = disjoint(a.footprint(), b.footprint());
    ASSERT_EQ(said, disjoint(b.footprint(), a.footprint()));
    if (!said) continue;
    ASSERT_FALSE(share_a_byte(a, b))
        << "a +" << a.address - 4096 << " x" << a.element_bytes << " " << a.extents.batch << ","
        << a.extents.seqlen << "," << a.extents.heads << "," << a.extents.dim << " / "
        << a.strides.batch << "," << a.strides.seqlen << "," << a.strides.head << "; b +"
        << b.address - 4096 << " " << b.extents.batch << "," << b.extents.seqlen << ","
        << b.extents.heads << "," << b.extents.dim << " / " << b.strides.batch << ","
        << b.strides.seqlen << "," << b.strides.head;
    const Footprint fa = a.footprint(), fb = b.footprint();
    disjoint_inside += fa.begin < fb.end() && fb.begin < fa.end();
  }
  EXPECT_GT(disjoint_inside, 1000);
}

// Gradients of one buffer: per token (q heads, k heads, v heads), per head (3, seqlen, dim) and so
// on.
struct Packing {
  const char* name;
  Tensor q, k, v;
};

Packing packed(const char* name, int64_t b, int64_t s, int64_t h, int64_t hk, int64_t d, int64_t dv,
               Strides strides_q, Strides strides_k, Strides strides_v, int64_t k_at,
               int64_t v_at) {
  constexpr int kBytes = 2;
  Packing p{name,
            {1 << 20, {b, s, h, d}, strides_q, kBytes},
            {1 << 20, {b, s, hk, d}, strides_k, kBytes},
            {1 << 20, {b, s, hk, dv}, strides_v, kBytes}};
  p.k.address += static_cast<uintptr_t>(k_at * kBytes);
  p.v.address += static_cast<uintptr_t>(v_at * kBytes);
  return p;
}

std::vector<Packing> packings(int64_t b, int64_t s, int64_t h, int64_t hk, int64_t d) {
  const int64_t token = h * d + 2 * hk * d;
  std::vector<Packing> all = {
      packed("(b, s, q|k|v heads, d)", b, s, h, hk, d, d, {s * token, token, d},
             {s * token, token, d}, {s * token, token, d}, h * d, h * d + hk * d),
      packed("(s, b, q|k|v heads, d)", b, s, h, hk, d, d, {token, b * token, d},
             {token, b * token, d}, {token, b * token, d}, h * d, h * d + hk * d),
      packed("(b, q|k|v heads, s, d)", b, s, h, hk, d, d, {s * token, d, s * d},
             {s * token, d, s * d}, {s * token, d, s * d}, h * s * d, (h + hk) * s * d)};
  if (h == hk) {
    all.push_back(packed("(b, s, h, 3, d)", b, s, h, h, d, d, {3 * s * h * d, 3 * h * d, 3 * d},
                         {3 * s * h * d, 3 * h * d, 3 * d}, {3 * s * h * d, 3 * h * d, 3 * d}, d,
                         2 * d));
    all.push_back(packed("(b, h, 3, s, d)", b, s, h, h, d, d, {3 * s * h * d, d, 3 * s * d},
                         {3 * s * h * d, d, 3 * s * d}, {3 * s * h * d, d, 3 * s * d}, s * d,
                         2 * s * d));
    all.push_back(packed("(b, h, s, 3, d)", b, s, h, h, d, d, {3 * s * h * d, 3 * d, 3 * s * d},
                         {3 * s * h * d, 3 * d, 3 * s * d}, {3 * s * h * d, 3 * d, 3 * s * d}, d,
                         2 * d));
  }
  return all;
}

TEST(Overlap, PackedGradientsAreDisjoint) {
  for (const int64_t b : {1, 2, 3}) {
    for (const int64_t s : {1, 2, 5}) {
      for (const auto& [h, hk] : {std::pair<int64_t, int64_t>{1, 1}, {4, 4}, {4, 2}, {6, 1}}) {
        for (const int64_t d : {1, 3, 8}) {
          for (const Packing& p : packings(b, s, h, hk, d)) {
            SCOPED_TRACE(p.name);
            ASSERT_FALSE(share_a_byte(p.q, p.k) || share_a_byte(p.q, p.v) ||
                         share_a_byte(p.k, p.v));
            EXPECT_TRUE(disjoint(p.q.footprint(), p.k.footprint()));
            EXPECT_TRUE(disjoint(p.k.footprint(), p.v.footprint()));
            EXPECT_TRUE(disjoint(p.v.footprint(), p.q.footprint()));
            // One element off, and they meet.
            Tensor shifted = p.k;
            shifted.address += 2;
            EXPECT_FALSE(disjoint(shifted.footprint(), p.v.footprint()));
          }
        }
      }
    }
  }
}

TEST(Overlap, EmptyTensorsOverlapNothing) {
  const Tensor full{4096, {2, 3, 4, 5}, {60, 20, 5}, 4};
  for (int i = 0; i < 4; ++i) {
    Tensor empty = full;
    (i == 0   ? empty.extents.batch
     : i == 1 ? empty.extents.seqlen
     : i == 2 ? empty.extents.heads
              : empty.extents.dim) = 0;
    EXPECT_TRUE(disjoint(full.footprint(), empty.footprint()));
  }
}

TEST(Overlap, EndOfTheAddressSpace) {
  const Tensor top{UINTPTR_MAX - 15, {1, 1, 1, 16}, {0, 0, 0}, 1};
  EXPECT_TRUE(top.footprint().overflow);  // its end would be 0
  const Tensor huge{4096, {3, 1, 1, 1}, {INT64_MAX, 0, 0}, 2};
  EXPECT_TRUE(huge.footprint().overflow);
}

}  // namespace
}  // namespace tilewise
