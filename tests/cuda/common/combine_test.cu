// The kernel that joins splits, against one row at a time in fp64.
#include "cuda/common/combine.cuh"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Shape {
  int splits, batch, heads, queries, dim;
  bool varlen;
};

struct Joined {
  std::vector<float> o, lse;
};

class CombineSplits : public DeviceTest {
 protected:
  // Index of a row among those of one split, and in the outputs of layout (batch, query, head, dim)
  // with one more element a row.
  static int64_t rows(const Shape& s) { return int64_t{s.batch} * s.heads * s.queries; }

  template <DType kType>
  static Joined run(const Shape& s, const std::vector<float>& o, const std::vector<float>& lse) {
    const int stride = s.dim + 1;
    const std::vector<uint16_t> poison(rows(s) * stride, 0xffff);
    const DeviceArray<float> partial_o(o), partial_lse(lse), out_lse(rows(s));
    const DeviceArray<uint16_t> out(poison);
    const DeviceArray<int32_t> lengths(std::vector<int32_t>{0, s.queries});
    ForwardParams p;
    p.o.data = out.data();
    p.o.head = stride;
    p.o.seqlen = int64_t{stride} * s.heads;
    p.o.batch = s.varlen ? 0 : p.o.seqlen * s.queries;
    p.o.dim = s.dim;
    p.lse = out_lse.data();
    p.lse_head = s.queries;
    p.lse_batch = int64_t{s.heads} * s.queries;
    p.batch = s.batch;
    p.num_heads = s.heads;
    p.num_splits = s.splits;
    p.partial_o = partial_o.data();
    p.partial_lse = partial_lse.data();
    p.partial_rows = rows(s);
    p.cu_seqlens_q = s.varlen ? lengths.data() : nullptr;
    combine<kType><<<static_cast<unsigned>((rows(s) + 3) / 4), 128>>>(p);
    Joined joined = {{}, out_lse.get()};
    const std::vector<uint16_t> got = out.get();
    for (int64_t row = 0; row < rows(s); ++row) {
      const int64_t query = row % s.queries, head = row / s.queries % s.heads,
                    batch = row / s.queries / s.heads;
      const int64_t at = ((batch * s.queries + query) * s.heads + head) * stride;
      for (int x = 0; x < s.dim; ++x) {
        joined.o.push_back(kType == DType::kBf16 ? float_of_bf16(got[at + x])
                                                 : float_of_fp16(got[at + x]));
      }
      EXPECT_EQ(got[at + s.dim], 0xffff) << "past the end of row " << row;
    }
    return joined;
  }

  template <DType kType>
  static void check(const Shape& s) {
    std::vector<float> o, lse;
    for (int64_t i = 0; i < s.splits * rows(s); ++i) {
      // A row of each kind: all splits empty, some empty, far apart, and plain ones.
      const int64_t row = i % rows(s), split = i / rows(s);
      const bool empty = row % 5 == 0 || (row % 5 == 1 && split % 2 == 0);
      const float spread = row % 5 == 2 ? 1e4f : 3.0f;
      lse.push_back(empty ? -kInfinity : spread * std::sin(static_cast<float>(i)));
      for (int x = 0; x < s.dim; ++x) {  // what an empty split holds counts for nothing
        o.push_back(empty ? NAN : std::cos(static_cast<float>(i * s.dim + x)));
      }
    }
    const Joined got = run<kType>(s, o, lse);
    const double u = unit_roundoff(kType);
    for (int64_t row = 0; row < rows(s); ++row) {
      double most = -kInfinity, sum = 0;
      for (int i = 0; i < s.splits; ++i) most = std::fmax(most, lse[i * rows(s) + row]);
      const auto weight = [&](int i) {
        return most == -kInfinity ? 0 : std::exp(double{lse[i * rows(s) + row]} - most);
      };
      for (int i = 0; i < s.splits; ++i) sum += weight(i);
      if (sum == 0) {
        EXPECT_EQ(got.lse[row], -kInfinity);
      } else {
        const double want = most + std::log(sum);
        EXPECT_NEAR(got.lse[row], want, 2e-6 * std::fmax(1, std::abs(want))) << row;
      }
      for (int x = 0; x < s.dim; ++x) {
        double want = 0;
        for (int i = 0; i < s.splits; ++i) {
          if (weight(i) > 0) want += weight(i) / sum * o[(i * rows(s) + row) * s.dim + x];
        }
        EXPECT_NEAR(got.o[row * s.dim + x], want, 1.1 * u) << row << " " << x;
      }
    }
  }
};

TEST_F(CombineSplits, EqualsTheSumOfItsParts_E7) {
  for (const Shape& s :
       {Shape{2, 2, 3, 5, 64, false}, Shape{3, 1, 4, 7, 33, false}, Shape{40, 3, 2, 1, 128, false},
        Shape{256, 1, 1, 3, 1, false}, Shape{7, 1, 3, 21, 40, true}}) {
    SCOPED_TRACE(s.splits);
    check<DType::kBf16>(s);
    check<DType::kFp16>(s);
  }
}

// A split without keys changes no bit of the others' result.
TEST_F(CombineSplits, EmptyIsTheIdentity_B042) {
  const Shape one = {1, 1, 1, 4, 16, false}, three = {3, 1, 1, 4, 16, false};
  std::vector<float> o, lse = {1.5f, -1e4f, 1e4f, -kInfinity};
  for (int i = 0; i < 4 * 16; ++i) o.push_back(i < 48 ? std::sin(static_cast<float>(i)) : 0.0f);
  const Joined alone = run<DType::kBf16>(one, o, lse);
  std::vector<float> padded_o(3 * o.size(), 0.0f), padded_lse(3 * lse.size(), -kInfinity);
  std::copy(o.begin(), o.end(), padded_o.begin() + o.size());
  std::copy(lse.begin(), lse.end(), padded_lse.begin() + lse.size());
  const Joined padded = run<DType::kBf16>(three, padded_o, padded_lse);
  EXPECT_EQ(padded.o, alone.o);
  EXPECT_EQ(padded.lse, alone.lse);
  EXPECT_EQ(alone.lse, lse);
}

}  // namespace
}  // namespace tilewise::cuda::test
