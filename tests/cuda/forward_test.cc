// The CUDA forward against the fp64 oracle, by the same rules as the CPU's. Skipped without a
// device.
#include <gtest/gtest.h>

#include "core/format.h"
#include "tests/cuda/check_on_device.h"

namespace tilewise {
namespace {

class CudaForward : public EachTypeOnDevice {};

// Every head-dim tile, its middle and its first dimension that needs it; odd lengths.
TEST_P(CudaForward, HeadDims_A1_A2_A3) {
  for (const int d : {1, 8, 33, 64, 65, 80, 96, 97, 128, 160, 192, 193, 256}) {
    for (const char* mask : {"", " causal"}) {
      check_on_device(format("{} b2 sq129 sk200 h2 d{}{} seed:{}", GetParam(), d, mask, d));
    }
  }
  check_on_device(format("{} b1 sq70 sk300 h2 d192 dv128 causal", GetParam()));
  check_on_device(format("{} b1 sq70 sk300 h2 d64 dv40", GetParam()));
}

TEST_P(CudaForward, Masks_E1_E8) {
  for (const char* mask : {"causal", "causal topleft", "window:5,3", "window:0,0",
                           "window:-1,7 topleft", "window:100,-1", "window:64,64"}) {
    for (const char* shape : {"sq1 sk1", "sq5 sk3", "sq130 sk129", "sq129 sk700", "sq300 sk40",
                              "sq257 sk257", "sq3 sk1000"}) {
      check_on_device(format("{} b1 {} h2 hk1 d64 {}", GetParam(), shape, mask));
    }
  }
}

TEST_P(CudaForward, ScoresLayoutsGroups) {
  for (const char* rest :
       {"sq200 sk200 h4 d64 softcap:20 causal", "sq200 sk333 h4 hk2 d128 alibi",
        "sq77 h2 d64 scale:-0.3", "sq77 h2 d64 scale:0 causal", "sq77 sk90 h4 d64 layout:bhsd",
        "sq77 h4 hk4 d64 layout:qkv", "sq200 h2 d96 offset:q=3 offset:o=1",
        "sq64 sk4000 h8 hk1 d128", "sq1 sk9000 h8 hk2 d128", "sq2 sk5000 h16 hk2 d64 causal alibi",
        "sq1 sk700 h4 d256 softcap:5", "sq1 sk9000 h8 hk2 d128 offset:k=1",
        "sq3 sk3000 h2 d64 offset:v=5"}) {
    check_on_device(format("{} b2 {}", GetParam(), rest));
  }
  check_on_device(format("{} varlen:q=3,70,0,200:k=90,70,5,333 h4 hk2 d64 causal", GetParam()));
  check_on_device(format("{} varlen:q=1,1,1:k=900,70,5000 h4 hk2 d128", GetParam()));
}

TEST_P(CudaForward, DataFamilies_A1_A7) {
  for (const char* data : {"normal", "uniform", "large", "needle", "equal", "zero", "low", "high",
                           "huge", "structured", "subnormal", "largest", "nonfinite"}) {
    for (const char* shape : {"sq130 sk300 h2 d64", "sq300 h2 d128 causal"}) {
      check_on_device(format("{} b1 {} data:{} seed:7", GetParam(), shape, data));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaForward, testing::Values("bf16", "fp16"));

}  // namespace
}  // namespace tilewise
