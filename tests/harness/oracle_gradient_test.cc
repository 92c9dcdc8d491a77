// The oracle's gradients against central differences of its own outputs (A8), and what it says of
// its own uncertainty.
#include <cmath>

#include "harness/oracle.h"
#include "support.h"

namespace tilewise::harness {
namespace {

// sum(do * o), from long double attention rounded to double.
double loss_of(const Tensors& t) {
  const AttentionProblem& p = t.problem();
  const Extents e = p.extents(TensorId::kDo);
  const Oracle r = oracle(t);
  std::vector<double> d_o(static_cast<std::size_t>(e.dim));
  double sum = 0;
  for (int64_t b = 0; b < e.batch; ++b) {
    for (int64_t s = 0; s < e.seqlen; ++s) {
      for (int64_t h = 0; h < e.heads; ++h) {
        t.get_row(TensorId::kDo, b, s, h, d_o.data());
        const int64_t at = packed_index(p, TensorId::kO, b, s, h);
        for (std::size_t x = 0; x < d_o.size(); ++x) sum += d_o[x] * r.o[at + x];
      }
    }
  }
  return sum;
}

void compare(Tensors& t, TensorId input, const std::vector<double>& gradient) {
  constexpr double kStep = 1e-5;
  const Extents e = t.problem().extents(input);
  for (int64_t i = 0; i < static_cast<int64_t>(gradient.size()); ++i) {
    const int64_t x = i % e.dim, h = i / e.dim % e.heads;
    const int64_t s = i / e.dim / e.heads % e.seqlen, b = i / e.dim / e.heads / e.seqlen;
    const double value = t.get(input, b, s, h, x);
    t.set(input, b, s, h, x, value + kStep);
    const double above = loss_of(t);
    t.set(input, b, s, h, x, value - kStep);
    const double below = loss_of(t);
    t.set(input, b, s, h, x, value);
    EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-7)
        << print(t.problem_case()) << " " << name_of(input) << " element " << i;
  }
}

TEST(OracleGradient, IsTheNumericDerivative_A8) {
  const char* const lines[] = {
      "fp64 b1 sq4 sk5 h2 hk1 d3 dv2 backward",
      "fp64 b2 sq5 sk3 h1 d2 causal backward seed:1",
      "fp64 b1 sq4 sk6 h2 d3 window:2,1 softcap:1.5 backward seed:2",
      "fp64 b1 sq4 sk4 h4 hk2 d2 causal topleft alibi scale:-0.7 backward seed:3",
      "fp64 varlen:q=2,0,3:k=3,2,2 h2 d2 causal backward data:uniform",
  };
  for (const char* line : lines) {
    Tensors t = filled(line);
    const Oracle r = oracle(t);
    compare(t, TensorId::kQ, r.dq);
    compare(t, TensorId::kK, r.dk);
    compare(t, TensorId::kV, r.dv);
  }
}

// One key: the true gradients of q and k are 0, and all that is left is the rounding of o.
TEST(OracleGradient, NoiseIsWhatTheRoundingOfOLeaves) {
  Tensors t = zeroed("fp32 b1 sq1 sk1 h1 d1 dv2 scale:2 backward");
  t.set(TensorId::kQ, 0, 0, 0, 0, 3);
  t.set(TensorId::kK, 0, 0, 0, 0, 5);
  t.set(TensorId::kV, 0, 0, 0, 0, 4);
  t.set(TensorId::kV, 0, 0, 0, 1, 1);
  t.set(TensorId::kDo, 0, 0, 0, 0, 1);
  t.set(TensorId::kDo, 0, 0, 0, 1, 3);
  const Oracle r = oracle(t);
  EXPECT_NEAR(r.dq[0], 0, 1e-14);
  EXPECT_NEAR(r.dk[0], 0, 1e-14);
  EXPECT_NEAR(r.dq_noise[0], 2 * 5 * std::hypot(4.0, 3.0), 1e-12);
  EXPECT_NEAR(r.dk_noise[0], 2 * 3 * std::hypot(4.0, 3.0), 1e-12);
}

TEST(OracleGradient, ScoreErrorGrowsWithTheSumsOnTheWay) {
  Tensors early = zeroed("fp32 b1 sq1 sk1 h1 d4 scale:1");
  Tensors late = zeroed("fp32 b1 sq1 sk1 h1 d4 scale:1");
  early.set(TensorId::kQ, 0, 0, 0, 0, 30);
  early.set(TensorId::kK, 0, 0, 0, 0, 1);
  late.set(TensorId::kQ, 0, 0, 0, 3, 30);
  late.set(TensorId::kK, 0, 0, 0, 3, 1);
  EXPECT_NEAR(oracle(early).score_error[0], std::sqrt(4 * 900.0 / 3 + 4 * 900.0), 1e-9);
  EXPECT_NEAR(oracle(late).score_error[0], std::sqrt(900.0 / 3 + 4 * 900.0), 1e-9);
}

TEST(Eager, RoundsScoresAndWeights) {
  Tensors t = zeroed("bf16 b1 sq1 sk3 h1 d1 scale:1");
  for (int64_t j = 0; j < 3; ++j) t.set(TensorId::kV, 0, j, 0, 0, 1);
  // 1/3 in bf16 is 0.333984375: the sum of three is no longer 1, but rounds to it.
  EXPECT_EQ(eager(t).o[0], round_to(DType::kBf16, 3 * 0.333984375));
  t.set(TensorId::kV, 0, 0, 0, 0, 2);
  EXPECT_EQ(eager(t).o[0], round_to(DType::kBf16, 4 * 0.333984375));
  t.set(TensorId::kQ, 0, 0, 0, 0, 1.0078125);
  t.set(TensorId::kK, 0, 0, 0, 0, 1.0078125);  // 1.01568... becomes 1.015625
  const double first = std::exp(1.015625), sum = first + 2;
  EXPECT_EQ(eager(t).o[0], round_to(DType::kBf16, 2 * round_to(DType::kBf16, first / sum) +
                                                      2 * round_to(DType::kBf16, 1 / sum)));
}

}  // namespace
}  // namespace tilewise::harness
