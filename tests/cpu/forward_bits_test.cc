// The CPU forward kernels against each other, bit by bit.
#include "forward_call.h"

#include <gtest/gtest.h>

#include "tests/thinned.h"

namespace tilewise::cpu::forward_test {
namespace {

TEST(CpuForward, GivesTheSameBitsForEveryInstructionSetTaskSizeAndThreadCount) {
  Thinned thinned(5);
  for (const char* text : kForwardCases) {
    const Inputs in = make_inputs(text, 2.0f);
    if (in.c.problem.dtype == DType::kBf16) continue;
    const Outputs want = run(in, "cpu.forward.scalar");
    for (const std::string& kernel : kernels_for(in.c.problem.dtype)) {
      for (const int threads : {1, 2, 7}) {
        if (thinned.skips()) continue;
        expect_equal(run(in, kernel, {threads, 0}), want, kernel + " " + text);
      }
      for (const int blocks : {1, 2, 5}) {
        if (thinned.skips()) continue;
        expect_equal(run(in, kernel, {3, blocks}), want, kernel + " " + text);
      }
    }
  }
}

TEST(CpuForward, GivesTheSameBitsOfBf16ProductsForEveryTaskSizeAndThreadCount) {
  if (best_isa() < CpuIsa::kAvx512Bf16) GTEST_SKIP() << why_not_higher_isa();
  for (const char* text : kForwardCases) {
    const Inputs in = make_inputs(text, 2.0f);
    if (in.c.problem.dtype != DType::kBf16) continue;
    const Outputs want = run(in, "cpu.forward.avx512bf16");
    for (const int blocks : {1, 2, 5}) {
      expect_equal(run(in, "cpu.forward.avx512bf16", {3, blocks}), want, text);
    }
  }
}

// A sequence alone, beside others, and dense: the same bits (batch invariance).
TEST(CpuForward, GivesASequenceTheSameBitsAloneAndBesideOthers) {
  const Inputs packed = make_inputs("fp32 h4 hk2 d48 causal varlen:q=20,77,130:k=31,90,200");
  Inputs alone = make_inputs("fp32 b1 sq77 sk90 h4 hk2 d48 causal");
  const AttentionProblem& p = packed.c.problem;
  const auto slice = [](const std::vector<float>& t, int64_t stride, int64_t begin, int64_t count) {
    return std::vector<float>(t.begin() + begin * stride, t.begin() + (begin + count) * stride);
  };
  alone.q = slice(packed.q, p.stride(TensorId::kQ).seqlen, 20, 77);
  alone.k = slice(packed.k, p.stride(TensorId::kK).seqlen, 31, 90);
  alone.v = slice(packed.v, p.stride(TensorId::kV).seqlen, 31, 90);
  for (const std::string& kernel : kernels_for(DType::kFp32)) {
    const Outputs all = run(packed, kernel), one = run(alone, kernel);
    expect_equal(one.o, slice(all.o, p.stride(TensorId::kO).seqlen, 20, 77), kernel);
    for (int64_t h = 0; h < 4; ++h) {
      expect_equal(slice(one.lse, 1, h * 77, 77), slice(all.lse, 1, h * p.total_q + 20, 77),
                   kernel);
    }
  }
}

// What a row's neighbours in the vector hold must not touch it: one head's rows have huge scores.
TEST(CpuForward, GivesARowTheSameBitsBesideAnyNeighbours) {
  Inputs calm = make_inputs("fp32 b1 sq60 sk400 h2 hk1 d64");
  Inputs wild = calm;
  for (int64_t s = 0; s < 60; ++s) {
    for (int64_t x = 0; x < 64; ++x) {
      float& q = wild.at(wild.q, TensorId::kQ, 0, s, 1, x);
      q = s % 7 == 0 ? kNaN : s % 7 == 1 ? kInf : q * 1e4f;
    }
  }
  for (const std::string& kernel : kernels_for(DType::kFp32)) {
    const Outputs a = run(calm, kernel), b = run(wild, kernel);
    for (int64_t s = 0; s < 60; ++s) {
      ASSERT_EQ(a.lse[s], b.lse[s]);
      for (int64_t x = 0; x < 64; ++x) {
        ASSERT_EQ(calm.at(calm.v, TensorId::kV, 0, 0, 0, 0), wild.v[0]);
        const int64_t at = s * 128 + x;  // head 0
        ASSERT_EQ(bits_of_float(a.o[at]), bits_of_float(b.o[at])) << kernel;
        if (s % 7 < 2) {
          ASSERT_TRUE(std::isnan(b.o[at + 64])) << kernel;
        }
      }
      if (s % 7 < 2) {
        ASSERT_TRUE(std::isnan(b.lse[60 + s])) << kernel;
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::cpu::forward_test
