// OnlineSoftmax on one row of double: the rules every backend inherits.
#include "core/online_softmax.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/random.h"

namespace tilewise {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Ops {
  static double set(double x) { return x; }
  static double zero() { return 0.0; }
  static double negative_infinity() { return -kInf; }
  static double exp2(double x) { return std::exp2(x); }
  static double log2(double x) { return std::log2(x); }
  static double max(double a, double b) { return a > b ? a : b; }
  static double select_empty(double x, double so, double otherwise) {
    return x == -kInf ? so : otherwise;
  }
  static double select_zero(double x, double so, double otherwise) {
    return x == 0 ? so : otherwise;
  }
};
using Softmax = OnlineSoftmax<double, Ops>;

uint64_t bits(double x) { return std::bit_cast<uint64_t>(x); }

// A row over keys with one value each: o is the weighted mean of the values.
struct Row {
  Softmax state;
  double o = 0.0;  // not normalised until finish()
  double lse = 0.0;

  void add(const std::vector<double>& scores, const std::vector<double>& values) {
    double top = -kInf;
    for (const double s : scores) top = Ops::max(top, s);
    const double factor = state.update(top);
    o *= factor;
    for (size_t i = 0; i < scores.size(); ++i) {
      const double p = std::exp2(scores[i] - state.shift());
      state.sum += p;
      o += p * values[i];
    }
  }
  void finish() { o *= state.finalize(&lse); }
};

double uniform(const PhiloxStream& random, uint64_t i) { return random.word(i) * 0x1p-32; }

struct Data {
  std::vector<double> scores, values;
  double o = 0.0, lse = -kInf;  // computed directly
};
Data make_data(uint64_t seed, size_t keys, double spread) {
  const PhiloxStream random(seed, 7);
  Data d;
  double top = -kInf;
  for (size_t i = 0; i < keys; ++i) {
    d.scores.push_back((uniform(random, 2 * i) - 0.5) * spread);
    d.values.push_back(uniform(random, 2 * i + 1) - 0.5);
    top = std::max(top, d.scores.back());
  }
  double sum = 0.0;
  for (size_t i = 0; i < keys; ++i) {
    const double p = std::exp2(d.scores[i] - top);
    sum += p;
    d.o += p * d.values[i];
  }
  d.o /= sum;
  d.lse = (top + std::log2(sum)) * std::log(2.0);
  return d;
}

Row row_over(const Data& d, const std::vector<size_t>& order, size_t tile) {
  Row row;
  for (size_t begin = 0; begin < order.size(); begin += tile) {
    std::vector<double> s, v;
    for (size_t i = begin; i < std::min(begin + tile, order.size()); ++i) {
      s.push_back(d.scores[order[i]]);
      v.push_back(d.values[order[i]]);
    }
    row.add(s, v);
  }
  row.finish();
  return row;
}

std::vector<size_t> shuffled(size_t n, uint64_t seed) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  const PhiloxStream random(seed, 8);
  for (size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random.word(i) % i]);
  return order;
}

TEST(OnlineSoftmax, AnyOrderAndTileSizeGivesTheDirectResult) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const size_t keys = 1 + seed % 67;
    const Data d = make_data(seed, keys, seed % 3 == 0 ? 2000.0 : 20.0);
    for (const size_t tile : {size_t{1}, size_t{3}, size_t{16}, keys}) {
      const Row row = row_over(d, shuffled(keys, seed), tile);
      EXPECT_NEAR(row.o, d.o, 1e-13) << "seed " << seed << " tile " << tile;
      EXPECT_NEAR(row.lse, d.lse, 1e-13 * std::max(1.0, std::abs(d.lse))) << "seed " << seed;
    }
  }
}

TEST(OnlineSoftmax, EmptyRowIsZeroAndMinusInfinity_E1_B133) {
  Row row;
  row.finish();
  EXPECT_EQ(bits(row.o), bits(0.0));
  EXPECT_EQ(row.lse, -kInf);
  Row masked;  // keys are there, but every score is -inf
  masked.add({-kInf, -kInf}, {1.0, 2.0});
  masked.add({-kInf}, {3.0});
  masked.finish();
  EXPECT_EQ(bits(masked.o), bits(0.0));
  EXPECT_EQ(masked.lse, -kInf);
}

TEST(OnlineSoftmax, ScoresOfMinusInfinityHaveNoWeight) {
  Row with, without;
  with.add({-kInf, 1.0, -kInf}, {1e300, 0.25, -1e300});
  with.add({-kInf}, {1e300});
  without.add({1.0}, {0.25});
  with.finish();
  without.finish();
  EXPECT_EQ(bits(with.o), bits(without.o));
  EXPECT_EQ(bits(with.lse), bits(without.lse));
}

TEST(OnlineSoftmax, LargestScoresStayFinite_B009) {
  for (const double score : {-524288.0, -1e9, 1e9, -1e300}) {
    Row row;
    row.add({score, score}, {1.0, 1.0});
    row.finish();
    EXPECT_EQ(row.o, 1.0) << score;
    // Two keys: one more in base 2.
    EXPECT_NEAR(row.lse, (score + 1) * std::log(2.0), std::abs(score) * 1e-15) << score;
  }
}

TEST(OnlineSoftmax, NanAndPlusInfinityScoresGiveNan) {
  for (const double bad : {kInf, std::nan("")}) {
    Row row;
    row.add({0.0, 1.0}, {1.0, 2.0});
    row.add({bad}, {1.0});
    row.finish();
    EXPECT_TRUE(std::isnan(row.o)) << bad;
    EXPECT_TRUE(std::isnan(row.lse)) << bad;
  }
}

TEST(OnlineSoftmax, EmptyIsTheIdentityOfMergeBitForBit_E7_B042_B133) {
  const PhiloxStream random(3);
  for (uint64_t i = 0; i < 2000; ++i) {
    Softmax some;
    some.reference = (uniform(random, 2 * i) - 0.5) * (i % 5 == 0 ? 1e4 : 10.0);
    some.sum = 1.0 + 4096.0 * uniform(random, 2 * i + 1);
    for (const bool empty_first : {false, true}) {
      Softmax state = empty_first ? Softmax{} : some;
      double mine = -1.0, theirs = -1.0;
      state.merge(empty_first ? some : Softmax{}, &mine, &theirs);
      ASSERT_EQ(bits(state.reference), bits(some.reference));
      ASSERT_EQ(bits(state.sum), bits(some.sum));
      ASSERT_EQ(bits(empty_first ? theirs : mine), bits(1.0)) << "sum " << some.sum;
      ASSERT_EQ(bits(empty_first ? mine : theirs), bits(0.0));
    }
  }
  Softmax none;
  double mine = -1.0, theirs = -1.0;
  none.merge(Softmax{}, &mine, &theirs);
  EXPECT_EQ(none.reference, -kInf);
  EXPECT_EQ(bits(none.sum), bits(0.0));
  EXPECT_EQ(bits(mine), bits(0.0));
  EXPECT_EQ(bits(theirs), bits(0.0));
}

TEST(OnlineSoftmax, MergeOfAnySplitGivesTheDirectResult_E7) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const size_t keys = 2 + seed % 40;
    const Data d = make_data(seed, keys, seed % 3 == 0 ? 3000.0 : 20.0);
    const std::vector<size_t> order = shuffled(keys, seed);
    const size_t parts = 1 + seed % 7;
    Row total;
    total.finish();
    for (size_t part = 0; part < parts; ++part) {
      std::vector<size_t> mine;
      for (size_t i = part; i < keys; i += parts) mine.push_back(order[i]);
      const Row piece = row_over(d, mine, 4);  // may be empty
      double a = 0.0, b = 0.0, lse = 0.0;
      total.state.merge(piece.state, &a, &b);
      total.o = a * total.o + b * piece.o;
      total.state.finalize(&lse);
      total.lse = lse;
    }
    EXPECT_NEAR(total.o, d.o, 1e-13) << "seed " << seed;
    EXPECT_NEAR(total.lse, d.lse, 1e-13 * std::max(1.0, std::abs(d.lse))) << "seed " << seed;
  }
}

TEST(OnlineSoftmax, MergeOfHugeLsesDoesNotOverflow_B042) {
  for (const double a : {-1e4, 0.0, 1e4}) {
    for (const double b : {-1e4, 0.0, 1e4}) {
      Softmax left{a, 1.0}, right{b, 1.0};
      double mine = 0.0, theirs = 0.0;
      left.merge(right, &mine, &theirs);
      EXPECT_EQ(left.reference, std::max(a, b));
      EXPECT_NEAR(mine + theirs, 1.0, 1e-15);
      if (a == b) {
        EXPECT_EQ(mine, 0.5);
      } else {
        EXPECT_EQ(mine, a > b ? 1.0 : 0.0);
      }
    }
  }
}

}  // namespace
}  // namespace tilewise
