// Memory around the tensors: pages that may not be touched at both ends, and the exact size of
// cu_seqlens.
#include <gtest/gtest.h>

#include <string>

#include "harness/data.h"
#include "support.h"

namespace tilewise::suite {
namespace {

using harness::BufferOptions;
using harness::Placement;

// Runs with the last (first) byte of every tensor at the edge of a page that may not be touched: a
// stray read is a crash that names the test.
void run_at_page(const ProblemCase& c, const std::string& kernel, Placement placement) {
  BufferOptions buffers;
  buffers.placement = placement;
  Tensors t(c, buffers);
  ASSERT_TRUE(harness::fill_inputs(t).ok());
  SCOPED_TRACE(print(c) + " " + kernel);
  run_as_is(t, with_kernel(kernel));
}

TEST(GuardPages, DecodeOfEveryLength_B049_B052) {
  uint64_t turn = 0;
  Thinned thinned;
  for (int64_t sk = 1; sk <= 600; ++sk) {
    for (const char* dtype : {"bf16", "fp32", "fp16"}) {
      ++turn;
      if (thinned.skips()) continue;
      const ProblemCase c =
          case_of(format("{} b1 sq1 sk{} h{} hk1 d{}{}", dtype, sk, 1 + turn % 9,
                         turn % 4 == 0 ? 32 : 7 + turn % 90, turn % 2 == 0 ? " layout:bhsd" : ""));
      for (const std::string& kernel : tiled_kernels_for(c.problem)) {
        run_at_page(c, kernel, turn % 3 == 0 ? Placement::kStartAtPage : Placement::kEndAtPage);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(GuardPages, ForwardAndBackwardOfOddShapes_B016_B055) {
  Draw draw(9);
  const char* const masks[] = {"", " causal", " window:9,3", " causal topleft"};
  const char* const dtypes[] = {"fp32", "fp16", "bf16"};
  const char* const layouts[] = {"", " layout:bhsd"};
  for (int trial = 0; trial < (Thinned::kSanitized ? 40 : 250); ++trial) {
    const ProblemCase c =
        case_of(format("{} b{} sq{} sk{} h2 hk{} d{} dv{}{}{}{}", draw.of(dtypes),
                       1 + draw.below(2), 1 + draw.below(140), 1 + draw.below(140),
                       1 + draw.below(2), 1 + draw.below(100), 1 + draw.below(100), draw.of(masks),
                       draw.of(layouts), draw.below(2) == 0 ? " backward" : ""));
    for (const std::string& kernel : tiled_kernels_for(c.problem)) {
      run_at_page(c, kernel, trial % 3 == 0 ? Placement::kStartAtPage : Placement::kEndAtPage);
      if (HasFailure()) return;
    }
  }
}

// cu_seqlens has batch + 1 entries and not one more.
TEST(GuardPages, VarlenReadsNoFurtherThanItsSequences_B050) {
  for (int64_t batch = 1; batch <= 9; ++batch) {
    std::string q, k;
    for (int64_t i = 0; i < batch; ++i) {
      q += (i == 0 ? "" : ",") + std::to_string(i * 5 % 7);
      k += (i == 0 ? "" : ",") + std::to_string((i * 11 + batch) % 40);
    }
    for (const char* direction : {"", " backward"}) {
      const ProblemCase c =
          case_of(format("fp32 varlen:q={}:k={} h2 hk1 d16 causal{}", q, k, direction));
      for (const std::string& kernel : kernels_for(c.problem)) {
        run_at_page(c, kernel, Placement::kEndAtPage);
      }
    }
  }
}

// Pointers at any element offset.
TEST(Alignment, EveryElementOffset_I4) {
  Thinned thinned;
  for (const char* dtype : {"fp32", "fp16", "bf16"}) {
    for (int offset = 0; offset < 16; ++offset) {
      for (const char* shape :
           {"b1 sq20 sk40 h1 d24", "b1 sq1 sk40 h2 hk1 d64", "b1 sq20 sk40 h1 d24 backward"}) {
        if (thinned.skips()) continue;
        ProblemCase c = case_of(format("{} {}", dtype, shape));
        for (int t = 0; t < kNumTensors; ++t) c.offsets[t] = (offset + 3 * t) % 16;
        for (const std::string& kernel : tiled_kernels_for(c.problem)) expect_accurate(c, kernel);
        if (HasFailure()) return;
      }
    }
  }
}

// Nothing is written past the last row of o or of a gradient, for every head dim.
TEST(Guards, NothingIsWrittenPastTheHeadDim_B016_B059_F2) {
  Thinned thinned;
  for (int64_t d = 8; d <= 256; d += 8) {
    for (const char* direction : {"", " backward"}) {
      if (thinned.skips()) continue;
      // Rows of outputs stand H*D + 16 apart; the gaps are guards.
      ProblemCase c = case_of(format("bf16 b1 sq9 sk33 h2 d{}{}", d, direction));
      for (const TensorId id : {TensorId::kO, TensorId::kDq, TensorId::kDk, TensorId::kDv}) {
        const Extents e = c.problem.extents(id);
        c.problem.stride(id) = {e.seqlen * (2 * d + 16), 2 * d + 16, d};
      }
      for (const std::string& kernel : tiled_kernels_for(c.problem)) {
        run_filled(c, with_kernel(kernel));
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::suite
