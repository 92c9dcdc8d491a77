// One-hot V shows the visible set exactly: o[i][j] > 0 iff query i sees key j. Every small shape
// and window, both corners, on every kernel: prefill, decode, varlen, reference.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "harness/data.h"
#include "support.h"

namespace tilewise::suite {
namespace {

constexpr int64_t kLongest = 9;

bool seen(const MaskSpec& mask, int64_t i, int64_t j, Lengths n) {
  const int64_t center = i + (mask.align == Corner::kBottomRight ? n.k - n.q : 0);
  return (mask.window_left < 0 || j >= center - mask.window_left) &&
         (mask.window_right < 0 || j <= center + mask.window_right);
}

std::vector<MaskSpec> masks() {
  std::vector<MaskSpec> all;
  for (const Corner corner : {Corner::kBottomRight, Corner::kTopLeft}) {
    for (const int32_t left : {-1, 0, 1, 2, 3, 5, 8, 9, 40}) {
      for (const int32_t right : {-1, 0, 1, 2, 4, 9, 64}) all.push_back({left, right, corner});
    }
  }
  return all;
}

// Fills with scores near 0 and v[j] = unit vector j; of a varlen tensor j counts from each start.
void fill_one_hot(Tensors& t) {
  ASSERT_TRUE(harness::fill_inputs(t).ok());
  const ProblemCase& c = t.problem_case();
  const Extents e = t.problem().extents(TensorId::kV);
  std::vector<int64_t> position;
  if (t.problem().varlen) {
    for (const int32_t n : c.lengths_k) {
      for (int64_t j = 0; j < n; ++j) position.push_back(j);
    }
  } else {
    for (int64_t j = 0; j < e.seqlen; ++j) position.push_back(j);
  }
  for (int64_t at = 0; at < e.batch * e.seqlen * e.heads * e.dim; ++at) {
    const int64_t x = at % e.dim, h = at / e.dim % e.heads;
    const int64_t s = at / e.dim / e.heads % e.seqlen, b = at / e.dim / e.heads / e.seqlen;
    t.set(TensorId::kV, b, s, h, x, position[static_cast<size_t>(s)] == x ? 1.0 : 0.0);
  }
}

// Runs and compares; the case has head_dim_v >= kLongest.
void expect_visible_set(const ProblemCase& c, const std::string& kernel) {
  Tensors t(c);
  fill_one_hot(t);
  run_as_is(t, with_kernel(kernel));
  const AttentionProblem& p = c.problem;
  int64_t q_start = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Lengths n =
        p.varlen ? Lengths{c.lengths_q[b], c.lengths_k[b]} : Lengths{p.seqlen_q, p.seqlen_k};
    for (int64_t at = 0; at < n.q * p.num_heads * kLongest; ++at) {
      const int64_t j = at % kLongest, h = at / kLongest % p.num_heads;
      const int64_t i = at / kLongest / p.num_heads;
      const double o =
          p.varlen ? t.get(TensorId::kO, 0, q_start + i, h, j) : t.get(TensorId::kO, b, i, h, j);
      ASSERT_EQ(o > 0.0, j < n.k && seen(p.mask, i, j, n))
          << print(c) << " [" << kernel << "] sequence " << b << " query " << i << " key " << j;
    }
    q_start += n.q;
  }
}

// All shapes at once: one sequence of a varlen batch each.
TEST(VisibleSet, VarlenOnEveryKernel_E8_B127_B128_B131) {
  Thinned thinned;
  std::string q, k;
  for (int64_t sq = 0; sq <= kLongest; ++sq) {
    for (int64_t sk = 0; sk <= kLongest; ++sk) {
      q += (q.empty() ? "" : ",") + std::to_string(sq);
      k += (k.empty() ? "" : ",") + std::to_string(sk);
    }
  }
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    ProblemCase c = case_of(format("{} varlen:q={}:k={} h2 hk1 d8 dv9", dtype, q, k));
    for (const MaskSpec& mask : masks()) {
      c.problem.mask = mask;
      if (thinned.skips()) continue;
      for (const std::string& kernel : kernels_for(c.problem)) {
        expect_visible_set(c, kernel);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(VisibleSet, DenseOnEveryKernel_E8_B127_B128_B131) {
  Thinned thinned;
  uint64_t turn = 0;
  const char* const dtypes[] = {"fp32", "bf16", "fp16"};
  for (int64_t sq = 0; sq <= kLongest; ++sq) {
    for (int64_t sk = 0; sk <= kLongest; ++sk) {
      for (const MaskSpec& mask : masks()) {
        ProblemCase c = case_of(format("{} b1 sq{} sk{} h1 d4 dv9", dtypes[++turn % 3], sq, sk));
        c.problem.mask = mask;
        if (thinned.skips()) continue;
        const std::vector<std::string> kernels = kernels_for(c.problem);
        // One kernel in turn: over the masks and lengths each meets every kind of pair.
        expect_visible_set(c, kernels[turn / 3 % kernels.size()]);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// Both corners by name, on the pairs of lengths where they are easily mixed up.
TEST(VisibleSet, BothCornersAgainstTheOracle_B127) {
  for (const char* lengths : {"sq5 sk3", "sq3 sk5", "sq1 sk9", "sq9 sk1", "sq0 sk4", "sq4 sk0",
                              "sq130 sk70", "sq70 sk130"}) {
    for (const char* corner : {"", " topleft"}) {
      for (const char* direction : {"", " backward"}) {
        const ProblemCase c =
            case_of(format("fp32 b1 {} h1 d16 causal{}{}", lengths, corner, direction));
        for (const std::string& kernel : kernels_for(c.problem)) expect_accurate(c, kernel);
      }
    }
  }
}

// Larger shapes around the tile edges, where whole tiles are skipped or taken without a test.
TEST(VisibleSet, WindowsAcrossTiles_B131) {
  Thinned thinned;
  for (const char* window : {"window:32,64", "window:64,-1", "window:127,0", "window:-1,65",
                             "window:0,128", "window:200,3 topleft", "causal topleft"}) {
    for (const char* lengths : {"sq129 sk200", "sq200 sk129", "sq129 sk129", "sq64 sk256"}) {
      for (const char* dtype : {"fp32", "bf16"}) {
        for (const char* direction : {"", " backward"}) {
          if (thinned.skips()) continue;
          const ProblemCase c = case_of(
              format("{} b1 {} h1 d32 {} data:onehot{}", dtype, lengths, window, direction));
          for (const std::string& kernel : kernels_for(c.problem)) expect_accurate(c, kernel);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// Window (S-1, 0) hides what causal hides: the same result within rounding (bit-equality is not
// promised), and future keys have no influence.
TEST(VisibleSet, FullLeftWindowIsCausal_B129) {
  for (const int64_t s : {9, 65, 200}) {
    const ProblemCase causal = case_of(format("fp32 b1 sq{} h1 d32 causal", s));
    for (const std::string& kernel : kernels_for(causal.problem)) {
      const Outputs want = run_filled(causal, with_kernel(kernel));
      for (const int64_t left : {s - 1, s}) {
        const ProblemCase window = case_of(format("fp32 b1 sq{} h1 d32 window:{},0", s, left));
        const Outputs got = run_filled(window, with_kernel(kernel));
        EXPECT_LE(relative_l2(values_of(got.o, DType::kFp32), values_of(want.o, DType::kFp32)),
                  1e-6)
            << kernel << " " << left;
      }
    }
  }
}

// (batch, head, seqlen, dim) data under (batch, seqlen, head, dim) strides is another problem: the
// strides decide, not the shape.
TEST(VisibleSet, SwappedStridesGiveTheTransposedAnswer_B135) {
  const ProblemCase bshd = case_of("fp32 b1 sq6 h6 d8");
  const ProblemCase bhsd = case_of("fp32 b1 sq6 h6 d8 layout:bhsd");
  for (const std::string& kernel : kernels_for(bshd.problem)) {
    const Outputs want = run_filled(bshd, with_kernel(kernel));
    // The same logical elements in the other memory order.
    EXPECT_EQ(difference_of(run_filled(bhsd, with_kernel(kernel)), want), "") << kernel;
    // The same memory read with the strides of the other order: heads and positions change places.
    const Outputs swapped = run_filled(bhsd, with_kernel(kernel), [&](Tensors& t) {
      Tensors source(bshd);
      ASSERT_TRUE(harness::fill_inputs(source).ok());
      for (const TensorId id : {TensorId::kQ, TensorId::kK, TensorId::kV}) {
        for (int64_t at = 0; at < 6 * 6 * 8; ++at) {
          t.set(id, 0, at / 8 / 6, at / 8 % 6, at % 8,
                source.get(id, 0, at / 8 % 6, at / 8 / 6, at % 8));
        }
      }
    });
    EXPECT_NE(difference_of(swapped, want), "") << kernel;
  }
}

}  // namespace
}  // namespace tilewise::suite
