// A8: the gradients of the fp64 path against central differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "harness/data.h"
#include "support.h"

namespace tilewise::suite {
namespace {

// sum(do * o), by a forward call.
double loss_of(Tensors& t) {
  const DType dtype = t.problem().dtype;
  harness::PreparedRun forward(t, Direction::kForward, {});
  EXPECT_TRUE(forward.ok() && forward.run() == TILEWISE_OK) << forward.outcome().error;
  const std::vector<double> o = values_of(t.packed(TensorId::kO), dtype);
  const std::vector<double> d_o = values_of(t.packed(TensorId::kDo), dtype);
  double loss = 0.0;
  for (size_t i = 0; i < o.size(); ++i) loss += o[i] * d_o[i];
  return loss;
}

// Largest error of `gradient` against the central difference in `input`, relative to the largest
// derivative.
double worst_derivative(Tensors& t, TensorId input, TensorId gradient) {
  const Extents e = t.problem().extents(input);
  constexpr double kStep = 1e-5;
  double worst = 0.0, size = 0.0;
  for (int64_t at = 0; at < e.batch * e.seqlen * e.heads * e.dim; ++at) {
    const int64_t x = at % e.dim, h = at / e.dim % e.heads;
    const int64_t s = at / e.dim / e.heads % e.seqlen, b = at / e.dim / e.heads / e.seqlen;
    const double value = t.get(input, b, s, h, x);
    t.set(input, b, s, h, x, value + kStep);
    const double above = loss_of(t);
    t.set(input, b, s, h, x, value - kStep);
    const double below = loss_of(t);
    t.set(input, b, s, h, x, value);
    const double want = (above - below) / (2.0 * kStep);
    worst = std::max(worst, std::fabs(t.get(gradient, b, s, h, x) - want));
    size = std::max(size, std::fabs(want));
  }
  return size == 0.0 ? worst : worst / size;
}

TEST(NumericDerivative, IsTheFp64Gradient_A8) {
  const char* const lines[] = {
      "fp64 b1 sq5 sk7 h2 hk1 d4 dv3 backward",
      "fp64 b2 sq4 sk4 h2 d3 causal backward",
      "fp64 b1 sq6 sk3 h1 d4 causal backward",
      "fp64 b1 sq5 sk8 h2 hk1 d4 window:2,1 softcap:1.5 backward",
      "fp64 b1 sq4 sk5 h2 d3 causal topleft alibi scale:-0.7 backward",
      "fp64 varlen:q=3,0,2:k=2,4,5 h2 hk1 d3 softcap:2 alibi causal backward",
  };
  for (const char* line : lines) {
    Tensors t(case_of(line));
    ASSERT_TRUE(harness::fill_inputs(t).ok());
    ASSERT_TRUE(harness::run_case(t).ok()) << line;
    EXPECT_LE(worst_derivative(t, TensorId::kQ, TensorId::kDq), 1e-7) << line;
    EXPECT_LE(worst_derivative(t, TensorId::kK, TensorId::kDk), 1e-7) << line;
    EXPECT_LE(worst_derivative(t, TensorId::kV, TensorId::kDv), 1e-7) << line;
  }
}

}  // namespace
}  // namespace tilewise::suite
