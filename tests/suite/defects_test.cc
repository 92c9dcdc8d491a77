// F6: the suite catches every planted defect (build preset `planted`), on every kernel that has it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "core/planted.h"
#include "support.h"

namespace tilewise::suite {
namespace {

#if defined(TILEWISE_PLANTED_DEFECTS)

// A sample of the accuracy tests: what the suite would run anyway.
const char* const kForwardLines[] = {
    "b1 sq129 sk301 h2 hk1 d64",
    "b1 sq129 sk301 h2 hk1 d64 data:uniform",
    "b1 sq129 sk301 h2 hk1 d64 data:large",
    "b1 sq129 sk301 h2 hk1 d64 data:needle",
    "b1 sq200 sk700 h1 d128 data:needle",
    "b1 sq150 sk150 h1 d32 causal",
    "b1 sq70 sk2000 h1 d64",
    "b1 sq70 sk2000 h1 d64 data:uniform",
    "b1 sq40 sk1100 h1 d64 scale:3 data:large",
    "b1 sq3 sk2500 h2 hk1 d64",
    "b1 sq3 sk2500 h2 hk1 d64 causal data:uniform",
    "varlen:q=33,1,40:k=77,300,1030 h2 hk1 d40 causal",
};
const char* const kBackwardLines[] = {
    "b1 sq129 sk301 h2 hk1 d64 backward",
    "b1 sq100 sk1200 h1 d64 backward",
    "b1 sq150 sk150 h1 d32 causal backward",
    "b1 sq70 sk90 h1 d32 softcap:2 backward",
    "b8 sq70 sk600 h2 d16 backward",
    "varlen:q=33,1,40:k=77,30,630 h2 hk1 d40 causal backward",
};

class Planted {
 public:
  explicit Planted(Defect defect) { planted_defect = defect; }
  ~Planted() { planted_defect = Defect::kNone; }
};

// Whether some line fails with that kernel.
bool caught(const std::string& kernel, const char* dtype, bool backward) {
  const auto fails = [&](const char* line) {
    const ProblemCase c = case_of(std::string(dtype) + " " + line);
    const std::vector<std::string> kernels = kernels_for(c.problem);
    if (std::find(kernels.begin(), kernels.end(), kernel) == kernels.end()) return false;
    harness::CheckOptions options;
    options.run = with_kernel(kernel, 1);
    return !harness::check_case(c, options).ok;
  };
  if (backward) return std::any_of(std::begin(kBackwardLines), std::end(kBackwardLines), fails);
  return std::any_of(std::begin(kForwardLines), std::end(kForwardLines), fails);
}

bool has_defect(const std::string& kernel, Defect d) {
  const std::string kind = kind_of(kernel);
  if (d == Defect::kChunkForgotten) return kind == "decode";
  if (d >= Defect::kDeltaOmitted) return kind == "backward";
  return kind == "forward" || (kind == "decode" && d <= Defect::kScaleOnePercent);
}

TEST(Defects, HealthyKernelsPassAndEveryPlantedDefectIsCaught_F6) {
  int planted_count = 0, caught_count = 0;
  for (const char* dtype : {"fp32", "fp16", "bf16"}) {
    std::vector<std::string> kernels =
        tiled_kernels_for(case_of(std::string(dtype) + " b1 sq1 h1 d8").problem);
    for (const std::string& kernel :
         tiled_kernels_for(case_of(std::string(dtype) + " b1 sq1 h1 d8 backward").problem)) {
      kernels.push_back(kernel);
    }
    for (const std::string& kernel : kernels) {
      const bool backward = kind_of(kernel) == "backward";
      EXPECT_FALSE(caught(kernel, dtype, backward)) << kernel << " " << dtype << " is healthy";
      for (int i = 1; i < static_cast<int>(Defect::kNumDefects); ++i) {
        const Defect defect = static_cast<Defect>(i);
        if (!has_defect(kernel, defect)) continue;
        const Planted scope(defect);
        ++planted_count;
        const bool found = caught(kernel, dtype, backward);
        caught_count += found;
        EXPECT_TRUE(found) << kDefectNames[i] << " in " << kernel << ", " << dtype;
      }
    }
  }
  std::printf("planted defects: %d of %d caught\n", caught_count, planted_count);
}

#else

TEST(Defects, ThisBuildCarriesNone_F6) {
  static_assert(!planted(Defect::kLastKeyDropped));
  static_assert(std::size(kDefectNames) == static_cast<size_t>(Defect::kNumDefects));
}

#endif

}  // namespace
}  // namespace tilewise::suite
