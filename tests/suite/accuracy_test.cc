// Rules A1 to A7 over types, directions, masks, data families and odd sizes, for every kernel this
// processor runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "harness/data.h"
#include "harness/oracle.h"
#include "support.h"

namespace tilewise::suite {
namespace {

const char* const kMasks[] = {
    "",
    " causal",
    " causal topleft",
    " window:7,3",
    " window:40,-1",
    " window:-1,20 topleft",
    " window:0,0",
    " causal window:33,0",
};
const char* const kShapes[] = {
    "b1 sq70 sk70 h2 d64",
    "b2 sq33 sk129 h2 hk1 d32",
    "b1 sq129 sk65 h3 hk1 d80",
    "b1 sq17 sk200 h4 hk2 d128",
    "b2 sq1 sk130 h4 hk2 d64",
    "b1 sq3 sk257 h2 d96",
    "b1 sq97 sk31 h1 d40 dv24",
    "b3 sq48 sk48 h1 d16",
    "b1 sq25 sk64 h1 d1 dv3",
    "b1 sq64 sk128 h2 hk1 d72",
    "b1 sq5 sk5 h12 hk1 d64",
    "b1 sq49 sk77 h1 d256 dv8",
    "b1 sq24 sk127 h1 d7 dv130",
    "b1 sq130 sk100 h1 d104",
    "varlen:q=3,0,41,1:k=5,7,40,70 h2 hk1 d64",
    "varlen:q=76,34,0:k=1,60,9 h3 d32",
};
const char* const kOptions[] = {
    "",
    " softcap:5",
    " alibi",
    " scale:-0.3",
    " softcap:20 alibi",
    " layout:bhsd",
    " layout:qkv",
    " offset:q=1 offset:k=3 offset:v=5 offset:o=7",
};

struct Group {
  const char* dtype;
  bool backward;

  std::string line(const std::string& rest, uint64_t seed) const {
    return format("{} {} seed:{}{}", dtype, rest, seed, backward ? " backward" : "");
  }
};

class Accuracy : public testing::TestWithParam<Group> {};
INSTANTIATE_TEST_SUITE_P(Suite, Accuracy,
                         testing::Values(Group{"fp32", false}, Group{"fp16", false},
                                         Group{"bf16", false}, Group{"fp64", false},
                                         Group{"fp32", true}, Group{"fp16", true},
                                         Group{"bf16", true}, Group{"fp64", true}),
                         [](const auto& info) {
                           return std::string(info.param.dtype) +
                                  (info.param.backward ? "_backward" : "_forward");
                         });

// Every mask with every family; shapes and options take turns, so that all come up with each mask
// and each family.
TEST_P(Accuracy, EveryFamilyAndMaskOnEveryKernel_A1_A2_A3_A4_A5_A6_A7) {
  const Group g = GetParam();
  Thinned thinned;
  uint64_t turn = 0;
  for (const std::string_view family : harness::data_families()) {
    if (family == "nonfinite" && g.backward) continue;
    for (const char* mask : kMasks) {
      ++turn;
      if (thinned.skips()) continue;
      const ProblemCase c =
          case_of(g.line(format("{}{}{} data:{}", kShapes[turn * 7 % std::size(kShapes)], mask,
                                kOptions[turn * 5 / 3 % std::size(kOptions)], family),
                         turn));
      for (const std::string& kernel : kernels_for(c.problem)) {
        if (kernel == "cpu.reference" && turn % 4 != 0 && c.problem.dtype != DType::kFp64) continue;
        expect_accurate(c, kernel);
      }
      if (HasFailure()) return;
    }
  }
}

// Every shape with every option, normal data and whichever mask is next.
TEST_P(Accuracy, EveryShapeAndOptionOnEveryKernel_B020) {
  const Group g = GetParam();
  Thinned thinned;
  uint64_t turn = 0;
  for (const char* shape : kShapes) {
    for (const char* option : kOptions) {
      const char* mask = kMasks[++turn % std::size(kMasks)];
      if (thinned.skips()) continue;
      const ProblemCase c = case_of(g.line(format("{}{}{}", shape, mask, option), turn));
      for (const std::string& kernel : tiled_kernels_for(c.problem)) expect_accurate(c, kernel);
      if (HasFailure()) return;
    }
  }
}

// What a user gets without forcing a kernel, at every level.
TEST_P(Accuracy, DefaultChoiceAtEveryLevel) {
  const Group g = GetParam();
  for (const CpuIsa isa : levels_here()) {
    const IsaScope scope(isa);
    uint64_t turn = 0;
    for (const char* shape : kShapes) {
      ++turn;
      expect_accurate(
          case_of(g.line(format("{}{}", shape, kMasks[turn % std::size(kMasks)]), turn)));
      if (HasFailure()) return;
    }
  }
}

TEST_P(Accuracy, EveryHeadDim_B008_B016_B094) {
  const Group g = GetParam();
  Draw draw(1);
  Thinned thinned;
  for (int64_t d = 1; d <= 300; d += d < 40 || d % 8 == 0 ? 1 : 2) {
    const int64_t dv = draw.below(3) == 0 ? 1 + draw.below(300) : d;
    const ProblemCase c = case_of(g.line(format("b1 sq{} sk{} h1 d{} dv{}{}", 1 + draw.below(30),
                                                1 + draw.below(70), d, dv, draw.of(kMasks)),
                                         static_cast<uint64_t>(d)));
    if (thinned.skips()) continue;
    const std::vector<std::string> kernels = tiled_kernels_for(c.problem);
    // All kernels for the remainders of 16, one in turn otherwise.
    for (size_t i = 0; i < kernels.size(); ++i) {
      if (d > 40 && i != static_cast<size_t>(d) % kernels.size()) continue;
      expect_accurate(c, kernels[i]);
    }
    if (HasFailure()) return;
  }
}

TEST_P(Accuracy, LargestHeadDims) {
  const Group g = GetParam();
  for (const char* dims : {"d320", "d512", "d512 dv17", "d3 dv512", "d511"}) {
    const ProblemCase c = case_of(g.line(format("b1 sq19 sk67 h2 hk1 {} causal", dims), 3));
    for (const std::string& kernel : tiled_kernels_for(c.problem)) expect_accurate(c, kernel);
  }
}

// Long rows: rounding adds up over many keys.
TEST_P(Accuracy, LongRows) {
  const Group g = GetParam();
  Thinned thinned(4);
  for (const char* shape :
       {"b1 sq48 sk2048 h1 d64", "b1 sq2 sk8191 h2 hk1 d128", "b1 sq31 sk4000 h1 d128 causal"}) {
    for (const char* data : {"normal", "large", "needle", "uniform"}) {
      if (thinned.skips()) continue;
      const ProblemCase c = case_of(g.line(format("{} data:{}", shape, data), 5));
      for (const std::string& kernel : tiled_kernels_for(c.problem)) expect_accurate(c, kernel);
    }
  }
}

TEST_P(Accuracy, EveryGroupSize_B018) {
  const Group g = GetParam();
  Thinned thinned;
  for (int64_t group = 1; group <= 17; ++group) {
    for (const int64_t hk : {2, 3}) {
      if (thinned.skips()) continue;
      const ProblemCase c = case_of(
          g.line(format("b1 sq{} sk37 h{} hk{} d16 causal", 1 + group % 5, group * hk, hk), 1));
      for (const std::string& kernel : tiled_kernels_for(c.problem)) expect_accurate(c, kernel);
      if (HasFailure()) return;
    }
  }
}

// v of kv head h is h + 1 everywhere, so o tells which head was read.
TEST(KvHeads, EachQueryHeadReadsItsOwn_B018) {
  Thinned thinned;
  for (int64_t group = 1; group <= 17; ++group) {
    for (const int64_t sq : {1, 3, 20}) {
      if (thinned.skips()) continue;
      const int64_t hk = 2 + group % 2;
      const ProblemCase c = case_of(format("fp32 b1 sq{} sk9 h{} hk{} d8", sq, group * hk, hk));
      for (const std::string& kernel : kernels_for(c.problem)) {
        Tensors t(c);
        ASSERT_TRUE(harness::fill_inputs(t).ok());
        for (int64_t at = 0; at < 9 * hk * 8; ++at) {
          const int64_t h = at / 8 % hk;
          t.set(TensorId::kV, 0, at / 8 / hk, h, at % 8, static_cast<double>(h + 1));
        }
        run_as_is(t, with_kernel(kernel));
        for (int64_t h = 0; h < group * hk; ++h) {
          ASSERT_NEAR(t.get(TensorId::kO, 0, sq - 1, h, 0), static_cast<double>(h / group + 1),
                      1e-6)
              << kernel << " group " << group << " head " << h;
        }
      }
    }
  }
}

// No key length is less accurate than twice the median, tile multiples least of all.
TEST(KvLengths, NoDipOfAccuracyAtTileMultiples_B025) {
  if (Thinned::kSanitized) GTEST_SKIP() << "a statistic, which thinning would spoil";
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    const ProblemCase shape = case_of(format("{} b1 sq1 sk1024 h6 hk1 d64", dtype));
    for (const std::string& kernel : tiled_kernels_for(shape.problem)) {
      std::vector<double> errors;  // over all rows: 48 of them, so that luck evens out
      for (int64_t step = 0; step < 40; ++step) {
        const int64_t sk = step % 2 == 0 ? 64 * (1 + step / 3) : 100 + 23 * step;
        Tensors t(case_of(format("{} b8 sq1 sk{} h6 hk1 d64 seed:{}", dtype, sk, step)));
        ASSERT_TRUE(harness::fill_inputs(t).ok());
        const Outputs out = run_as_is(t, with_kernel(kernel));
        errors.push_back(relative_l2(values_of(out.o, shape.problem.dtype), harness::oracle(t).o));
      }
      std::sort(errors.begin(), errors.end());
      EXPECT_LE(errors.back(), 2.0 * errors[errors.size() / 2]) << kernel << " " << dtype;
    }
  }
}

}  // namespace
}  // namespace tilewise::suite
