#include "cpu/merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/numeric.h"

namespace tilewise::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One part, or the result: rows of (batch, seqlen, head) with the given strides, in any dtype.
struct Rows {
  DType dtype;
  std::vector<char> o;
  std::vector<float> lse;

  Rows(DType t, int64_t elements, int64_t rows)
      : dtype(t), o(size_t(elements * size_of(t)), '\xff'), lse(size_t(rows), kNan) {}
  double get(int64_t i) const {
    if (dtype == DType::kFp64) return reinterpret_cast<const double*>(o.data())[i];
    if (dtype == DType::kFp32) return reinterpret_cast<const float*>(o.data())[i];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(o.data())[i];
    return dtype == DType::kFp16 ? float_of_fp16(bits) : float_of_bf16(bits);
  }
  void set(int64_t i, double x) {
    const float f = static_cast<float>(x);
    if (dtype == DType::kFp64) reinterpret_cast<double*>(o.data())[i] = x;
    if (dtype == DType::kFp32) reinterpret_cast<float*>(o.data())[i] = f;
    if (dtype == DType::kFp16) reinterpret_cast<uint16_t*>(o.data())[i] = fp16_of_float(f);
    if (dtype == DType::kBf16) reinterpret_cast<uint16_t*>(o.data())[i] = bf16_of_float(f);
  }
  bool operator==(const Rows& b) const {
    return o == b.o && std::memcmp(lse.data(), b.lse.data(), 4 * lse.size()) == 0;
  }
};

// One row of `dim` elements: merges in the order given.
struct Merged {
  Rows rows;
  Status status;
};
Merged merge_rows(const std::vector<Rows>& parts, int64_t dim, DType dtype) {
  Merged m{Rows(dtype, dim, 1), {}};
  std::vector<const void*> o;
  std::vector<const float*> lse;
  for (const Rows& p : parts) {
    o.push_back(p.o.data());
    lse.push_back(p.lse.data());
  }
  MergeArgs a;
  a.num_parts = static_cast<int64_t>(parts.size());
  a.o_parts = o.data();
  a.lse_parts = lse.data();
  a.o = m.rows.o.data();
  a.lse = m.rows.lse.data();
  a.part_dtype = parts.empty() ? DType::kFp32 : parts[0].dtype;
  a.dtype = dtype;
  a.batch = a.seqlen = a.num_heads = 1;
  a.head_dim = dim;
  a.part_strides = a.o_strides = {dim, dim, dim};
  m.status = merge(a);
  EXPECT_TRUE(m.status.ok()) << m.status.message();
  return m;
}

Rows row(DType dtype, int64_t dim, float lse, double value, double step = 0.25) {
  Rows r(dtype, dim, 1);
  for (int64_t x = 0; x < dim; ++x) r.set(x, value + step * static_cast<double>(x % 7));
  r.lse[0] = lse;
  return r;
}

constexpr DType kTypes[] = {DType::kFp16, DType::kBf16, DType::kFp32, DType::kFp64};

// B042, B133: (0, -inf) is the identity, bit for bit, on either side and any number of times.
TEST(Merge, EmptyIsTheIdentity) {
  for (const DType t : kTypes) {
    for (const int64_t dim : {1, 64, 65, 200}) {
      const Rows empty = row(t, dim, -kInfinity, 0, 0);
      EXPECT_TRUE(merge_rows({empty, empty}, dim, t).rows == empty);
      for (const float lse : {0.0f, 1.3f, -88.9f, 1e4f, -1e4f, 1e-30f, 3.3e38f, -3.3e38f}) {
        const Rows one = row(t, dim, lse, -0.3);
        EXPECT_TRUE(merge_rows({one}, dim, t).rows == one) << lse;
        EXPECT_TRUE(merge_rows({empty, one}, dim, t).rows == one) << lse;
        EXPECT_TRUE(merge_rows({one, empty}, dim, t).rows == one) << lse;
        EXPECT_TRUE(merge_rows({empty, empty, one, empty}, dim, t).rows == one) << lse;
        const Rows negative_zero = row(t, dim, lse, -0.0, 0);
        EXPECT_TRUE(merge_rows({empty, negative_zero, empty}, dim, t).rows == negative_zero);
      }
      // What lies in the o of an empty part does not matter.
      const Rows one = row(t, dim, 2, 0.5);
      EXPECT_TRUE(merge_rows({row(t, dim, -kInfinity, kNan), one}, dim, t).rows == one);
    }
    EXPECT_TRUE(merge_rows({}, 8, t).rows == row(t, 8, -kInfinity, 0, 0));
  }
}

// B042: every pair of {empty, finite, huge}.
TEST(Merge, PairsOfAnySize) {
  const float sizes[] = {-kInfinity, 0.5f, -0.5f, 1e4f, -1e4f};
  for (const float a : sizes) {
    for (const float b : sizes) {
      const Rows got = merge_rows({row(DType::kFp32, 8, a, 1, 0), row(DType::kFp32, 8, b, 3, 0)}, 8,
                                  DType::kFp32)
                           .rows;
      if (a == -kInfinity && b == -kInfinity) {
        EXPECT_EQ(got.lse[0], -kInfinity);
        EXPECT_EQ(got.get(3), 0);
        continue;
      }
      const double most = std::max(a, b);
      const double wa = std::exp(a - most), wb = std::exp(b - most);
      EXPECT_NEAR(got.get(3), (wa * 1 + wb * 3) / (wa + wb), 1e-6);
      EXPECT_NEAR(got.lse[0], most + std::log(wa + wb), 1e-6 * std::max(1.0, std::abs(most)));
    }
  }
}

TEST(Merge, NanAndInfinity) {
  const Rows one = row(DType::kFp32, 8, 1, 0.5);
  for (const float bad : {kNan, kInfinity}) {
    for (const auto& parts : {std::vector<Rows>{one, row(DType::kFp32, 8, bad, 0, 0)},
                              std::vector<Rows>{row(DType::kFp32, 8, bad, 0, 0), one}}) {
      const Rows got = merge_rows(parts, 8, DType::kFp32).rows;
      EXPECT_TRUE(std::isnan(got.lse[0]));
      for (int x = 0; x < 8; ++x) EXPECT_TRUE(std::isnan(got.get(x)));
    }
  }
}

// B002: attention over 1 to 128 splits of the keys, in any order, is attention over all of them.
TEST(Merge, SplitsOfOneSoftmax) {
  constexpr int kKeys = 300, kDim = 70;
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  std::vector<double> scores(kKeys), values(kKeys * kDim);
  for (double& s : scores) s = 4 * normal(random);
  for (double& v : values) v = normal(random);
  const auto attend = [&](int begin, int end, DType dtype) {
    Rows r(dtype, kDim, 1);
    double most = -kInfinity, sum = 0;
    for (int j = begin; j < end; ++j) most = std::max(most, scores[j]);
    for (int j = begin; j < end; ++j) sum += std::exp(scores[j] - most);
    r.lse[0] = begin == end ? -kInfinity : float(most + std::log(sum));
    for (int x = 0; x < kDim; ++x) {
      double o = 0;
      for (int j = begin; j < end; ++j)
        o += std::exp(scores[j] - most) / sum * values[j * kDim + x];
      r.set(x, o);
    }
    return r;
  };
  for (const DType t : kTypes) {
    const Rows want = attend(0, kKeys, DType::kFp64);
    for (const int splits : {1, 2, 3, 5, 16, 17, 32, 64, 127, 128}) {
      std::vector<Rows> parts;
      for (int s = 0; s < splits; ++s) {
        const int length = (kKeys + splits - 1) / splits;
        parts.push_back(attend(std::min(kKeys, s * length), std::min(kKeys, (s + 1) * length), t));
      }
      std::shuffle(parts.begin(), parts.end(), random);
      for (const DType out : kTypes) {
        const Rows got = merge_rows(parts, kDim, out).rows;
        const double u = std::max(unit_roundoff(t), unit_roundoff(out)) + 4e-7;
        for (int x = 0; x < kDim; ++x) EXPECT_NEAR(got.get(x), want.get(x), 4 * u) << splits;
        EXPECT_NEAR(got.lse[0], want.lse[0], 4e-6 * std::max(1.0f, std::abs(want.lse[0])));
      }
    }
  }
}

// B059: gaps between the rows of o stay as they were; parts and o have strides of their own.
TEST(Merge, Strides) {
  constexpr int64_t kBatch = 2, kSeqlen = 3, kHeads = 4, kDim = 5;
  const Strides part{kSeqlen * kHeads * kDim + 7, kDim, kSeqlen * kDim + 1};  // (b, h, s, d)
  const Strides out{kSeqlen * kHeads * (kDim + 2), kHeads * (kDim + 2), kDim + 2};
  const auto at = [](const Strides& s, int64_t b, int64_t i, int64_t h) {
    return b * s.batch + i * s.seqlen + h * s.head;
  };
  constexpr int64_t kRows = kBatch * kSeqlen * kHeads;
  std::vector<Rows> parts(3, Rows(DType::kBf16, kBatch * part.batch, kRows));
  for (size_t p = 0; p < parts.size(); ++p) {
    for (int64_t i = 0; i < kBatch * part.batch; ++i) parts[p].set(i, double(i % 13) - double(p));
    for (int64_t i = 0; i < kRows; ++i) parts[p].lse[size_t(i)] = float((i * 7 + int64_t(p)) % 5);
  }
  Rows got(DType::kFp32, kBatch * out.batch, kRows);
  const void* o[] = {parts[0].o.data(), parts[1].o.data(), parts[2].o.data()};
  const float* lse[] = {parts[0].lse.data(), parts[1].lse.data(), parts[2].lse.data()};
  MergeArgs a;
  a.num_parts = 3;
  a.o_parts = o;
  a.lse_parts = lse;
  a.o = got.o.data();
  a.lse = got.lse.data();
  a.part_dtype = DType::kBf16;
  a.dtype = DType::kFp32;
  a.batch = kBatch;
  a.seqlen = kSeqlen;
  a.num_heads = kHeads;
  a.head_dim = kDim;
  a.part_strides = part;
  a.o_strides = out;
  ASSERT_TRUE(merge(a).ok());
  std::vector<bool> written(size_t(kBatch * out.batch));
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t i = 0; i < kSeqlen; ++i) {
      for (int64_t h = 0; h < kHeads; ++h) {
        const size_t r = size_t((b * kHeads + h) * kSeqlen + i);
        double sum = 0, value[kDim] = {};
        for (const Rows& p : parts) {
          sum += std::exp(p.lse[r]);
          for (int64_t x = 0; x < kDim; ++x) {
            value[x] += std::exp(p.lse[r]) * p.get(at(part, b, i, h) + x);
          }
        }
        EXPECT_NEAR(got.lse[r], std::log(sum), 1e-6);
        for (int64_t x = 0; x < kDim; ++x) {
          EXPECT_NEAR(got.get(at(out, b, i, h) + x), value[x] / sum, 2e-6);
          written[size_t(at(out, b, i, h) + x)] = true;
        }
      }
    }
  }
  for (size_t i = 0; i < written.size(); ++i) {
    EXPECT_NE(written[i], std::isnan(got.get(int64_t(i)))) << "gap or element " << i;
  }
  a.lse = nullptr;  // optional
  EXPECT_TRUE(merge(a).ok());
}

TEST(Merge, RefusesBadInput) {
  float part[8] = {}, part_lse[1] = {}, lse[1] = {7};
  float o[8] = {7, 7, 7, 7, 7, 7, 7, 7};
  const void* o_parts[] = {part};
  const float* lse_parts[] = {part_lse};
  MergeArgs good;
  good.num_parts = 1;
  good.o_parts = o_parts;
  good.lse_parts = lse_parts;
  good.o = o;
  good.lse = lse;
  good.batch = good.seqlen = 1;
  good.num_heads = 2;
  good.head_dim = 4;
  good.part_strides = good.o_strides = {8, 8, 4};
  part_lse[0] = 0;
  const auto refused = [&](const char* word, auto change) {
    MergeArgs a = good;
    change(a);
    const Status s = merge(a);
    EXPECT_FALSE(s.ok()) << word;
    EXPECT_NE(s.message().find(word), std::string::npos) << s.message();
    for (const float x : o) EXPECT_EQ(x, 7) << word;
    EXPECT_EQ(lse[0], 7) << word;
  };
  const void* null_part[] = {nullptr};
  refused("num_parts is -1", [](MergeArgs& a) { a.num_parts = -1; });
  refused("head_dim is 0", [](MergeArgs& a) { a.head_dim = 0; });
  refused("num_heads is -3", [](MergeArgs& a) { a.num_heads = -3; });
  refused("part_dtype is 9", [](MergeArgs& a) { a.part_dtype = static_cast<DType>(9); });
  refused("dtype is -1", [](MergeArgs& a) { a.dtype = static_cast<DType>(-1); });
  refused("o is null", [](MergeArgs& a) { a.o = nullptr; });
  refused("o_parts is null", [](MergeArgs& a) { a.o_parts = nullptr; });
  refused("lse_parts is null", [](MergeArgs& a) { a.lse_parts = nullptr; });
  refused("o_parts[0] is null", [&](MergeArgs& a) { a.o_parts = null_part; });
  refused("o_strides.head is 3", [](MergeArgs& a) { a.o_strides.head = 3; });
  refused("part_strides.head is -4", [](MergeArgs& a) { a.part_strides.head = -4; });
  refused("overlaps o_parts[0]", [&](MergeArgs& a) { a.o = part + 1; });
  refused("o overlaps lse", [&](MergeArgs& a) { a.lse = o + 3; });
  refused("64 bits", [](MergeArgs& a) {
    a.batch = a.o_strides.batch = a.part_strides.batch = int64_t{1} << 40;
  });
  refused("aligned", [&](MergeArgs& a) { a.o = reinterpret_cast<char*>(o) + 1; });
  MergeArgs nothing = good;
  nothing.batch = 0;
  nothing.o = nullptr;
  EXPECT_TRUE(merge(nothing).ok());
}

}  // namespace
}  // namespace tilewise::cpu
