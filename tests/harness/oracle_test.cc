// The oracle against hand-computed cases, an independent formulation and numeric derivatives.
#include "harness/oracle.h"

#include <cmath>
#include <limits>

#include "support.h"

namespace tilewise::harness {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double o_at(const Oracle& r, const AttentionProblem& p, int64_t b, int64_t s, int64_t h,
            int64_t x) {
  return r.o[packed_index(p, TensorId::kO, b, s, h) + x];
}

// Scores ln 1 and ln 3: weights 1/4 and 3/4.
TEST(Oracle, TwoKeysByHand) {
  Tensors t = zeroed("fp64 b1 sq1 sk2 h1 d2 scale:1");
  t.set(TensorId::kQ, 0, 0, 0, 1, 2.0);
  t.set(TensorId::kK, 0, 1, 0, 1, std::log(3.0) / 2);
  t.set(TensorId::kV, 0, 0, 0, 0, 8.0);
  t.set(TensorId::kV, 0, 1, 0, 0, -4.0);
  const Oracle r = oracle(t);
  EXPECT_NEAR(o_at(r, t.problem(), 0, 0, 0, 0), 8.0 / 4 - 4.0 * 3 / 4, 1e-15);
  EXPECT_NEAR(r.o_magnitude[0], 8.0 / 4 + 4.0 * 3 / 4, 1e-15);
  EXPECT_NEAR(r.lse[0], std::log(4.0), 1e-15);
  EXPECT_NEAR(r.score_magnitude[0], std::log(3.0), 1e-15);
}

// With p = 1/2 each and dP = (a, b): dS = +-(a - b)/4.
TEST(Oracle, GradientsOfTwoEqualKeysByHand) {
  Tensors t = zeroed("fp64 b1 sq1 sk2 h1 d1 dv1 scale:3 backward");
  t.set(TensorId::kQ, 0, 0, 0, 0, 5.0);
  t.set(TensorId::kK, 0, 0, 0, 0, 2.0);
  t.set(TensorId::kK, 0, 1, 0, 0, 2.0);
  t.set(TensorId::kV, 0, 0, 0, 0, 7.0);
  t.set(TensorId::kV, 0, 1, 0, 0, 1.0);
  t.set(TensorId::kDo, 0, 0, 0, 0, 2.0);
  const Oracle r = oracle(t);
  EXPECT_NEAR(r.o[0], 4.0, 1e-14);
  EXPECT_NEAR(r.dv[0], 1.0, 1e-14);
  EXPECT_NEAR(r.dv[1], 1.0, 1e-14);
  EXPECT_NEAR(r.dk[0], 3 * 5 * (14.0 - 2.0) / 4, 1e-12);
  EXPECT_NEAR(r.dk[1], -3 * 5 * (14.0 - 2.0) / 4, 1e-12);
  EXPECT_NEAR(r.dq[0], 0.0, 1e-12);  // both keys are alike
}

TEST(Oracle, SoftcapThenAlibiByHand) {
  Tensors t = zeroed("fp64 b1 sq1 sk2 h1 d1 scale:2 softcap:3 alibi");
  t.set(TensorId::kQ, 0, 0, 0, 0, 1.0);
  t.set(TensorId::kK, 0, 0, 0, 0, 4.0);
  t.alibi_slopes()[0] = 0.5f;
  const double first = 3 * std::tanh(8.0 / 3) - 0.5 * 1;  // key 0 is one before the diagonal
  EXPECT_NEAR(oracle(t).lse[0], std::log(std::exp(first) + 1), 1e-15);
}

TEST(Oracle, QueryHeadsReadTheirOwnKeyHead_B018) {
  Tensors t = zeroed("fp32 b1 sq1 sk3 h6 hk2 d4");
  for (int64_t j = 0; j < 3; ++j) {
    for (int64_t x = 0; x < 4; ++x) {
      t.set(TensorId::kV, 0, j, 0, x, 1);
      t.set(TensorId::kV, 0, j, 1, x, 2);
    }
  }
  const Oracle r = oracle(t);
  for (int64_t h = 0; h < 6; ++h) {
    EXPECT_NEAR(o_at(r, t.problem(), 0, 0, h, 0), h < 3 ? 1 : 2, 1e-15);
  }
}

TEST(Oracle, RowsWithoutKeysAreEmpty_B011_B133) {
  const Tensors t = filled("fp32 b1 sq5 sk3 h2 hk1 d4 causal backward");
  const Oracle r = oracle(t);
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t s = 0; s < 5; ++s) {
      const bool empty = s < 2;  // row 2 sees one key, whose gradient is 0 too
      EXPECT_EQ(r.lse[lse_index(t.problem(), 0, s, h)] == -kInfinity, empty);
      EXPECT_EQ(o_at(r, t.problem(), 0, s, h, 1) == 0, empty);
      EXPECT_EQ(r.dq[packed_index(t.problem(), TensorId::kDq, 0, s, h)] == 0, s < 3);
    }
  }
}

TEST(Oracle, NonFiniteScoresAndValues_E3_E6) {
  Tensors t = filled("fp32 b1 sq3 sk4 h1 d2 causal topleft scale:1");
  t.set(TensorId::kQ, 0, 0, 0, 0, 1);
  t.set(TensorId::kK, 0, 0, 0, 0, -kInfinity);  // the only key of row 0
  t.set(TensorId::kQ, 0, 1, 0, 0, 1);
  t.set(TensorId::kQ, 0, 2, 0, 0, -1);  // +inf in row 2
  t.set(TensorId::kV, 0, 1, 0, 1, kInfinity);
  t.set(TensorId::kV, 0, 3, 0, 0, NAN);  // no row sees it
  const Oracle r = oracle(t);
  EXPECT_EQ(r.lse[0], -kInfinity);
  EXPECT_EQ(r.o[0], 0);
  EXPECT_TRUE(std::isfinite(r.lse[1]));
  EXPECT_NEAR(r.o[2], t.get(TensorId::kV, 0, 1, 0, 0), 1e-12);  // key 0 has weight 0
  EXPECT_TRUE(std::isnan(r.o[3]));
  EXPECT_TRUE(std::isnan(r.lse[2]));
  EXPECT_TRUE(std::isnan(r.o[4]));
}

TEST(Oracle, ScoresBeyondFp32AreInfinite_E6) {
  for (const double q : {1e30, -1e30}) {
    Tensors t = zeroed("fp32 b1 sq1 sk2 h1 d1 scale:1");
    t.set(TensorId::kQ, 0, 0, 0, 0, q);
    t.set(TensorId::kK, 0, 0, 0, 0, 1e30);
    const double lse = oracle(t).lse[0];
    EXPECT_TRUE(q > 0 ? std::isnan(lse) : lse == 0) << lse;
  }
}

// Attention written down once more, element by element, from the contract alone.
double plain_score(const Tensors& t, int64_t b, int64_t i, int64_t j, int64_t h) {
  const AttentionProblem& p = t.problem();
  double dot = 0;
  for (int64_t x = 0; x < p.head_dim; ++x) {
    dot += t.get(TensorId::kQ, b, i, h, x) *
           t.get(TensorId::kK, b, j, h * p.num_heads_kv / p.num_heads, x);
  }
  double s = dot * p.scale();
  if (p.softcap > 0) s = p.softcap * std::tanh(s / p.softcap);
  const int64_t diagonal = i + (p.mask.align == Corner::kTopLeft ? 0 : p.seqlen_k - p.seqlen_q);
  if (p.alibi) {
    s -= t.alibi_slopes()[b * t.alibi_batch_stride() + h] *
         std::fabs(static_cast<double>(diagonal - j));
  }
  if (p.mask.window_left >= 0 && j < diagonal - p.mask.window_left) return -kInfinity;
  if (p.mask.window_right >= 0 && j > diagonal + p.mask.window_right) return -kInfinity;
  return s;
}

TEST(Oracle, EqualsAnIndependentFormulation) {
  const char* const lines[] = {
      "fp32 b2 sq7 sk9 h4 hk2 d5 dv3",
      "fp32 b2 sq9 sk7 h2 d5 causal seed:1 alibi",
      "fp32 b1 sq6 sk11 h3 hk1 d4 window:2,1 softcap:2 seed:2",
      "fp32 b1 sq6 sk11 h3 d4 window:3,-1 topleft scale:-0.5 seed:3",
      "bf16 b1 sq6 sk5 h2 d4 causal topleft alibi layout:bhsd seed:5",
      "fp16 b1 sq4 sk4 h2 d4 layout:qkv data:large",
  };
  for (const char* line : lines) {
    const Tensors t = filled(line);
    const AttentionProblem& p = t.problem();
    const Oracle r = oracle(t);
    for (int64_t row = 0; row < p.num_rows(); ++row) {
      const int64_t b = row / p.seqlen_q / p.num_heads, h = row / p.seqlen_q % p.num_heads;
      const int64_t i = row % p.seqlen_q, hk = h / p.group();
      double sum = 0;
      for (int64_t j = 0; j < p.seqlen_k; ++j) sum += std::exp(plain_score(t, b, i, j, h));
      const double lse = r.lse[lse_index(p, b, i, h)];
      if (sum == 0) {
        EXPECT_EQ(lse, -kInfinity);
        continue;
      }
      EXPECT_NEAR(lse, std::log(sum), 1e-12) << line;
      for (int64_t x = 0; x < p.head_dim_v; ++x) {
        double o = 0;
        for (int64_t j = 0; j < p.seqlen_k; ++j) {
          o += std::exp(plain_score(t, b, i, j, h)) / sum * t.get(TensorId::kV, b, j, hk, x);
        }
        EXPECT_NEAR(o_at(r, p, b, i, h, x), o, 1e-12) << line;
      }
    }
  }
}

TEST(Oracle, VarlenIsDenseSequenceBySequence) {
  const Tensors packed = filled("fp32 varlen:q=3,0,5:k=4,2,0 h4 hk2 d3 causal backward");
  const Oracle all = oracle(packed);
  Tensors first = filled("fp32 b1 sq3 sk4 h4 hk2 d3 causal backward");
  std::vector<double> row(3);
  for (int i = 0; i < kNumTensors; ++i) {
    const auto id = static_cast<TensorId>(i);
    const Extents e = first.problem().extents(id);
    for (int64_t s = 0; s < e.seqlen; ++s) {
      for (int64_t h = 0; h < e.heads; ++h) {
        packed.get_row(id, 0, s, h, row.data());
        first.set_row(id, 0, s, h, row.data());
      }
    }
  }
  const Oracle one = oracle(first);
  const auto begins_with = [](const std::vector<double>& a, const std::vector<double>& b) {
    for (std::size_t i = 0; i < b.size(); ++i) EXPECT_EQ(a[i], b[i]);
  };
  begins_with(all.o, one.o);
  begins_with(all.dq, one.dq);
  begins_with(all.dk, one.dk);
  begins_with(all.dv, one.dv);
  for (int64_t h = 0; h < 4; ++h) {
    EXPECT_EQ(all.lse[lse_index(packed.problem(), 0, 1, h)],
              one.lse[lse_index(first.problem(), 0, 1, h)]);
    EXPECT_EQ(all.lse[lse_index(packed.problem(), 0, 7, h)], -kInfinity);
  }
  const AttentionProblem& p = packed.problem();
  EXPECT_EQ(all.dk[packed_index(p, TensorId::kDk, 0, 5, 1)], 0);  // keys that nobody asks for
}

}  // namespace
}  // namespace tilewise::harness
