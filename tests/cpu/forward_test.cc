// The CPU forward kernels against a loop in fp64, and at the edges of what they are given.
#include "forward_call.h"

#include <gtest/gtest.h>

namespace tilewise::cpu::forward_test {
namespace {

TEST(CpuForward, AgreesWithAnFp64Loop) {
  for (const char* text : kForwardCases) {
    const Inputs in = make_inputs(text);
    const Outputs want = reference(in);
    for (const std::string& kernel : kernels_for(in.c.problem.dtype)) {
      double u = unit_roundoff(in.c.problem.dtype);
      expect_close(run(in, kernel), want, u, kernel + " " + text);
    }
  }
}

// Rows of any size of scores: the reference must move, and not only where a block starts.
TEST(CpuForward, AgreesWhenScoresGrowAlongTheKeys) {
  for (const char* text :
       {"fp32 b1 sq70 sk500 h2 hk1 d64", "fp32 b1 sq300 sk500 h2 hk1 d32 causal"}) {
    Inputs in = make_inputs(text);
    const int64_t width = in.c.problem.num_heads_kv * in.c.problem.head_dim;
    for (size_t i = 0; i < in.k.size(); ++i) in.k[i] *= 0.05f * static_cast<float>(i / width);
    const Outputs want = reference(in);
    for (const std::string& kernel : kernels_for(DType::kFp32)) {
      const Outputs got = run(in, kernel);
      for (size_t i = 0; i < got.o.size(); ++i) {
        ASSERT_NEAR(got.o[i], want.o[i], 2e-4) << kernel << " " << text;
      }
    }
  }
}

// B014, B028, B034: what stands in keys that a row does not see is as good as zero.
TEST(CpuForward, IgnoresNonFiniteHiddenKeysAndValues) {
  for (const char* text :
       {"fp32 b1 sq70 sk130 h2 hk1 d40 causal", "bf16 b1 sq70 sk130 h2 hk1 d40 causal"}) {
    Inputs zero = make_inputs(text);
    for (int64_t x = 0; x < 40; ++x) {  // key 100 is seen by queries from 40 on
      zero.at(zero.k, TensorId::kK, 0, 100, 0, x) = 0;
      zero.at(zero.v, TensorId::kV, 0, 100, 0, x) = 0;
    }
    for (const float bad : {kNaN, kInf, -kInf}) {
      Inputs in = zero;
      in.at(in.k, TensorId::kK, 0, 100, 0, 5) = bad;
      in.at(in.v, TensorId::kV, 0, 100, 0, 7) = bad;
      in.at(in.v, TensorId::kV, 0, 100, 0, 39) = bad;
      for (const std::string& kernel : kernels_for(in.c.problem.dtype)) {
        const Outputs a = run(zero, kernel), b = run(in, kernel);
        for (int64_t s = 0; s < 40; ++s) {
          for (int64_t x = 0; x < 80; ++x) ASSERT_EQ(a.o[s * 80 + x], b.o[s * 80 + x]) << kernel;
        }
      }
    }
  }
}

TEST(CpuForward, MakesOnlyTheColumnOfANonFiniteVisibleValueNonFinite) {
  for (const char* text : {"fp32 b1 sq70 sk300 h2 hk1 d40", "bf16 b1 sq70 sk300 h2 hk1 d40"}) {
    Inputs zero = make_inputs(text);
    for (const int64_t key : {3, 250}) zero.at(zero.v, TensorId::kV, 0, key, 0, 7) = 0;
    for (const float bad : {kNaN, kInf, -kInf}) {
      for (const int64_t key : {3, 250}) {
        Inputs in = zero;
        in.at(in.v, TensorId::kV, 0, key, 0, 7) = bad;
        for (const std::string& kernel : kernels_for(in.c.problem.dtype)) {
          const Outputs a = run(zero, kernel), b = run(in, kernel);
          expect_equal(a.lse, b.lse, kernel);
          for (int64_t i = 0; i < 140 * 40; ++i) {
            if (i % 40 == 7) {
              ASSERT_FALSE(std::isfinite(b.o[i])) << kernel;
            } else {
              ASSERT_EQ(a.o[i], b.o[i]) << kernel;
            }
          }
        }
      }
    }
  }
}

// A score of -inf has weight 0; a row of nothing else is an empty row.
TEST(CpuForward, TreatsScoresOfMinusInfinityAsHidden) {
  Inputs in = make_inputs("fp32 b1 sq2 sk200 h1 hk1 d4");
  for (int64_t j = 0; j < 200; ++j) {
    for (int64_t x = 0; x < 4; ++x) in.at(in.k, TensorId::kK, 0, j, 0, x) = 1;
    if (j != 150) in.at(in.k, TensorId::kK, 0, j, 0, 0) = -kInf;
  }
  for (int64_t x = 0; x < 4; ++x) {
    in.at(in.q, TensorId::kQ, 0, 0, 0, x) = 1;  // sees only key 150
    in.at(in.q, TensorId::kQ, 0, 1, 0, x) = x == 0 ? 2.0f : 0.0f;
  }
  for (const std::string& kernel : kernels_for(DType::kFp32)) {
    const Outputs got = run(in, kernel);
    for (int64_t x = 0; x < 4; ++x) {
      EXPECT_EQ(got.o[x], in.at(in.v, TensorId::kV, 0, 150, 0, x)) << kernel;
    }
    EXPECT_NEAR(got.lse[0], 2.0f, 1e-5) << kernel;
  }
  for (int64_t x = 0; x < 4; ++x) in.at(in.k, TensorId::kK, 0, 150, 0, x) = x == 0 ? -kInf : 1.0f;
  in.at(in.v, TensorId::kV, 0, 20, 0, 1) = kInf;
  for (const std::string& kernel : kernels_for(DType::kFp32)) {
    const Outputs got = run(in, kernel);
    for (int64_t x = 0; x < 8; ++x) EXPECT_EQ(bits_of_float(got.o[x]), 0u) << kernel;
    EXPECT_EQ(got.lse[0], -kInf) << kernel;
    EXPECT_EQ(got.lse[1], -kInf) << kernel;
  }
}

// B009, B010, B035: scores far from 0 in both directions; equal ones share the weight.
TEST(CpuForward, ComputesScoresOfAnySize) {
  for (const float size : {-3e38f, -3e37f, -5e5f, 133120.0f * 133120.0f * 8, 1e9f, 2.6e38f}) {
    Inputs in = make_inputs("fp32 b1 sq3 sk150 h1 hk1 d1 scale:1");
    for (float& q : in.q) q = 1;
    for (float& k : in.k) k = size;
    const Outputs want = reference(in);
    for (const std::string& kernel : kernels_for(DType::kFp32)) {
      expect_close(run(in, kernel), want, unit_roundoff(DType::kFp32), kernel);
    }
    in.k[77] = size + 0.25f * std::abs(size);  // alone at the top
    for (const std::string& kernel : kernels_for(DType::kFp32)) {
      const Outputs got = run(in, kernel);
      for (int64_t s = 0; s < 3; ++s)
        EXPECT_NEAR(got.o[s], in.v[77], 1e-6) << kernel << " " << size;
    }
  }
}

TEST(CpuForward, WritesEmptyRowsWhenThereAreNoKeys) {  // B012, B047
  for (const char* text : {"fp32 b2 sq3 sk0 h2 hk1 d8", "bf16 b2 sq3 sk0 h2 hk1 d8 causal",
                           "fp32 h2 hk1 d8 varlen:q=3,2:k=0,0", "fp32 b0 sq3 sk3 h2 hk1 d8",
                           "fp32 b2 sq0 sk3 h2 hk1 d8"}) {
    const Inputs in = make_inputs(text);
    for (const std::string& kernel : kernels_for(in.c.problem.dtype)) {
      const Outputs got = run(in, kernel, {4, 0});
      for (const float x : got.o) EXPECT_EQ(bits_of_float(x), 0u) << kernel << " " << text;
      for (const float x : got.lse) EXPECT_EQ(x, -kInf) << kernel << " " << text;
    }
  }
}

TEST(CpuForward, KeepsScratchWithinFourMebibytesAThread) {
  for (const char* text :
       {"fp32 b1 sq100000 sk100000 h1 hk1 d128", "bf16 b9 sq4096 sk4096 h32 hk8 d64 causal"}) {
    Result<AttentionProblem> p = parse_problem(text);
    ASSERT_TRUE(p.ok());
    for (const KernelEntry* entry : forward_entries()) {
      Device device;
      device.isa = CpuIsa::kAvx512Bf16;
      if (!entry->supports(*p, device).yes) continue;
      Plan plan{*p, device, entry, {}, 0};
      PlanOptions options;
      for (options.threads = 1; options.threads < 100; options.threads *= 3) {
        ASSERT_TRUE(entry->shape(plan, options).ok());
        const int64_t list = plan.shape.num_tasks / p->num_heads_kv * 64;
        EXPECT_LE((plan.workspace_bytes - list) / plan.shape.threads, 4 << 20) << entry->name;
      }
    }
  }
}

TEST(CpuForward, RefusesSizesThatOverflow) {  // B091
  AttentionProblem p = *parse_problem("fp32 b2 sq4 sk4 h4 hk1 d8");
  p.batch = int64_t{1} << 40;
  p.seqlen_q = int64_t{1} << 40;
  Device device;
  Plan plan{p, device, forward_entries().back(), {}, 0};
  const Status status = forward_entries().back()->shape(plan, {});
  EXPECT_EQ(status.code(), StatusCode::kOverflow);
  EXPECT_NE(status.message().find("1099511627776"), std::string::npos) << status.message();
}

TEST(CpuForward, SaysWhyNot) {
  const AttentionProblem p = *parse_problem("fp32 b2 sq4 sk4 h4 hk1 d8");
  Device device;
  device.isa = CpuIsa::kAvx2;
  for (const KernelEntry* entry : forward_entries()) {
    const Answer answer = entry->supports(p, device);
    const std::string want = entry->name == "cpu.forward.avx512" ? "needs avx512, device has avx2"
                             : entry->name == "cpu.forward.avx512bf16" ? "dtype fp32 is not bf16"
                                                                       : "";
    EXPECT_EQ(answer.reason, want) << entry->name;
    EXPECT_EQ(answer.yes, want.empty()) << entry->name;
  }
}

}  // namespace
}  // namespace tilewise::cpu::forward_test
