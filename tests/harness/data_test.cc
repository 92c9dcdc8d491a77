#include <cmath>
#include <limits>

#include "harness/oracle.h"
#include "support.h"

namespace tilewise::harness {
namespace {

struct Moments {
  double mean = 0, variance = 0, least = 1e300, most = -1e300;
};
Moments moments_of(const Tensors& t, TensorId id) {
  const Extents e = t.problem().extents(id);
  std::vector<double> row(static_cast<std::size_t>(e.dim));
  Moments m;
  double squares = 0, count = 0;
  for (int64_t at = 0; at < e.batch * e.seqlen * e.heads; ++at) {
    t.get_row(id, at / e.heads / e.seqlen, at / e.heads % e.seqlen, at % e.heads, row.data());
    for (const double x : row) {
      m.mean += x;
      squares += x * x;
      m.least = std::min(m.least, x);
      m.most = std::max(m.most, x);
      ++count;
    }
  }
  m.mean /= count;
  m.variance = squares / count - m.mean * m.mean;
  return m;
}

std::string with(const std::string& family, const std::string& line) {
  return line + " data:" + family;
}

TEST(Data, NormalAndUniformHaveTheirMoments) {
  const Tensors normal = filled("fp32 b1 sq128 h2 d64 seed:7");
  for (const TensorId id : {TensorId::kQ, TensorId::kK, TensorId::kV}) {
    const Moments m = moments_of(normal, id);
    EXPECT_NEAR(m.mean, 0, 0.04);
    EXPECT_NEAR(m.variance, 1, 0.06);
    EXPECT_GT(m.most, 3.3);
  }
  const Moments m = moments_of(filled("fp32 b1 sq128 h2 d64 data:uniform"), TensorId::kV);
  EXPECT_NEAR(m.mean, 0.5, 0.02);
  EXPECT_NEAR(m.variance, 1.0 / 12, 0.01);
  EXPECT_GE(m.least, 0);
  EXPECT_LE(m.most, 1);
  EXPECT_NEAR(moments_of(filled("fp32 b1 sq128 h2 d64 data:large"), TensorId::kQ).variance, 25,
              1.5);
}

// The same values whatever the layout; others for another seed or tensor.
TEST(Data, DependsOnSeedTensorAndIndexOnly_F5) {
  for (const std::string_view family : data_families()) {
    const std::string line =
        "bf16 b2 sq5 sk7 h4 hk2 d6 backward seed:11 data:" + std::string(family);
    const Tensors a = filled(line), b = filled(line + " layout:bhsd offset:k=3");
    for (const TensorId id : {TensorId::kQ, TensorId::kK, TensorId::kV, TensorId::kDo}) {
      EXPECT_EQ(a.packed(id), b.packed(id)) << family;
    }
    EXPECT_NE(a.packed(TensorId::kV), a.packed(TensorId::kK)) << family;
  }
  EXPECT_NE(filled("fp32 b1 sq5 h1 d6 seed:1").packed(TensorId::kQ),
            filled("fp32 b1 sq5 h1 d6 seed:2").packed(TensorId::kQ));
}

TEST(Data, OneSequenceOfABatchIsAsGoodAsAnother) {
  const Tensors t = filled("fp32 varlen:q=3,4:k=5,6 h2 d8");
  EXPECT_NEAR(moments_of(t, TensorId::kQ).variance, 1, 0.5);
}

// What a family promises of its scores, in every type.
TEST(Data, FamiliesKeepTheirPromise) {
  for (const char* type : {"fp16", "bf16", "fp32", "fp64"}) {
    const std::string line = std::string(type) + " b1 sq40 sk150 h2 d64";
    const Tensors needle = filled(with("needle", line)), equal = filled(with("equal", line));
    const Oracle low = oracle(filled(with("low", line))), high = oracle(filled(with("high", line)));
    const Oracle hot = oracle(needle), mean = oracle(equal);
    for (std::size_t i = 0; i < low.lse.size(); ++i) {
      EXPECT_NEAR(low.lse[i], -120 + std::log(150.0), 6);
      EXPECT_NEAR(high.lse[i], 120 + std::log(150.0), 6);
    }
    double largest = 0;  // o of a needle row is the hot key's v
    for (int64_t j = 0; j < 150; ++j) {
      if (std::abs(needle.get(TensorId::kV, 0, j, 0, 5) - hot.o[5]) < 1e-3) largest = 1;
    }
    EXPECT_EQ(largest, 1) << type;
    double sum = 0;
    for (int64_t j = 0; j < 150; ++j) sum += equal.get(TensorId::kV, 0, j, 0, 0);
    EXPECT_NEAR(mean.o[0], sum / 150, 1e-12);
    const Oracle huge = oracle(filled(with("huge", line)));
    EXPECT_LT(huge.lse[0], -5e4);
    EXPECT_GT(huge.lse[40], 1e9);  // the other head
    EXPECT_NEAR(oracle(filled(with("zero", line))).lse[3], std::log(150.0), 1e-12);
  }
}

TEST(Data, OnehotShowsTheVisibleSet_E8) {
  const Oracle r = oracle(filled("fp32 b1 sq3 sk5 h1 d4 dv5 causal data:onehot"));
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 5; ++j) EXPECT_EQ(r.o[i * 5 + j] > 0, j <= i + 2) << i << " " << j;
  }
}

TEST(Data, ExtremesFitTheType) {
  for (const char* type : {"fp16", "bf16", "fp32", "fp64"}) {
    const std::string line = std::string(type) + " b1 sq64 h2 d64 backward";
    const Tensors t = filled(with("largest", line));
    const Oracle r = oracle(t);
    for (const auto* values : {&r.o, &r.dq, &r.dk, &r.dv}) {
      for (const double x : *values) EXPECT_LE(std::abs(x), largest_finite(t.problem().dtype));
    }
    const Moments m = moments_of(filled(with("subnormal", line)), TensorId::kV);
    EXPECT_LE(m.most, type == std::string("fp16")   ? 0x1p-14
                      : type == std::string("fp64") ? 0x1p-1022
                                                    : 0x1p-126);
    EXPECT_GT(m.most, 0);
  }
}

TEST(Data, NonfiniteHasSomeInOneTensor) {
  for (int seed = 0; seed < 12; ++seed) {
    const Tensors t = filled("fp32 b1 sq64 h2 d8 data:nonfinite seed:" + std::to_string(seed));
    int tensors = 0;
    for (const TensorId id : {TensorId::kQ, TensorId::kK, TensorId::kV}) {
      tensors += std::isfinite(moments_of(t, id).variance) ? 0 : 1;
    }
    EXPECT_EQ(tensors, 1) << seed;
  }
}

TEST(Data, UnknownFamilyIsAnErrorThatNamesTheKnown) {
  Tensors t(case_of("fp32 b1 sq1 h1 d1 data:nonsense"));
  const Status s = fill_inputs(t);
  EXPECT_FALSE(s.ok());
  EXPECT_NE(s.message().find("\"nonsense\""), std::string::npos);
  EXPECT_NE(s.message().find("needle"), std::string::npos);
}

TEST(Data, SlopesOfEachBatchOrOfAll) {
  EXPECT_EQ(filled("fp32 b2 sq1 h4 d1 alibi seed:2").alibi_batch_stride(), 0);
  const Tensors t = filled("fp32 b2 sq1 h4 d1 alibi seed:1");
  EXPECT_EQ(t.alibi_batch_stride(), 4);
  EXPECT_NE(t.alibi_slopes()[0], t.alibi_slopes()[4]);
}

}  // namespace
}  // namespace tilewise::harness
