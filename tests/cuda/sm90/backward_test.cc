// The sm_90 backward: where its tiles, rings and turns have edges. The rules of accuracy are those
// of every kernel; tests/cuda/backward_test.cc has the rest. Skipped but on sm_90.
#include <string>

#include "core/format.h"
#include "tests/cuda/check_on_device.h"
#include "tests/cuda/sm90/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr const char* kTypes[] = {"bf16", "fp16"};

// A problem line by the kernel of this tile.
void check(const std::string& line, int tile) {
  const Result<ProblemCase> c = parse_case(line + " backward");
  ASSERT_TRUE(c.ok()) << c.status().message();
  const char* mask = c->problem.mask.is_full() ? "full" : "banded";
  check_on_device(line + " backward",
                  format("sm90.backward.d{}.{}.{}", tile, mask, name_of(c->problem.dtype)));
}

class HopperBackward : public HopperTest {};

TEST_F(HopperBackward, LengthsAroundTiles) {
  for (const int sq : {1, 63, 64, 65, 128, 129, 200}) {
    for (const int sk : {1, 64, 65, 127, 128, 129, 300}) {
      for (const char* mask : {"", " causal", " causal topleft", " window:70,20"}) {
        check(format("bf16 b1 sq{} sk{} h1 d64{}", sq, sk, mask), 64);
        check(format("fp16 b1 sq{} sk{} h1 d128{}", sq, sk, mask), 128);
      }
    }
  }
}

TEST_F(HopperBackward, HeadDimsAreFilledUp) {
  for (const char* type : kTypes) {
    for (const int d : {8, 40, 64, 72, 96, 120, 128}) {
      check(format("{} b2 sq200 sk300 h2 d{} causal", type, d), d <= 64 ? 64 : 128);
    }
    check(format("{} b2 sq200 sk300 h2 d8 dv64", type), 64);
    check(format("{} b2 sq200 sk300 h2 d128 dv40 causal", type), 128);
    check(format("{} b2 sq200 sk300 h2 d16 dv72", type), 128);
  }
}

// More tiles than SMs, in sections, with groups of heads, and in every layout.
TEST_F(HopperBackward, ManyTiles) {
  for (const char* rest :
       {"b2 sq129 h70 d128 causal", "b2 sq70 sk129 h80 hk40 d64", "b1 sq700 h24 d64 causal",
        "b3 sq70 sk130 h60 hk30 d128 window:50,20", "b2 sq129 h70 d64 causal layout:bhsd",
        "b2 sq129 h70 d128 layout:qkv", "b80 sq20 sk129 h2 d64 causal"}) {
    for (const char* order : {"", " deterministic"}) {
      const std::string line = format("{} {}{}", *order == 0 ? "bf16" : "fp16", rest, order);
      check(line, static_cast<int>(parse_case(line)->problem.head_dim));
    }
  }
}

// Heads of a group are steps of one tile: many steps, one, and none.
TEST_F(HopperBackward, GroupsAndTilesWithoutSteps) {
  for (const char* rest :
       {"sq64 sk300 h8 hk1", "sq300 sk64 h6 hk2 causal", "sq100 sk700 h4 hk2 causal topleft",
        "sq200 sk900 h2 window:10,0 topleft", "sq900 sk200 h4 hk2 window:5,5", "sq1 sk1 h2"}) {
    check(format("bf16 b2 {} d64", rest), 64);
    check(format("fp16 b2 {} d128 deterministic", rest), 128);
  }
}

// lse and delta are where S and dP start from, so both have to be far from them.
TEST_F(HopperBackward, ScoresOfEverySize) {
  for (const char* type : kTypes) {
    for (const char* rest : {"scale:4", "scale:0.00001", "data:large", "data:huge", "data:largest",
                             "data:needle", "data:low", "data:high", "data:zero"}) {
      check(format("{} b1 sq300 h2 d64 causal {}", type, rest), 64);
      check(format("{} b1 sq200 sk300 h2 d128 {}", type, rest), 128);
    }
  }
}

TEST_F(HopperBackward, NonFiniteInputs) {
  for (const char* type : kTypes) {
    for (int seed = 0; seed < 6; ++seed) {
      for (const char* mask : {"", " causal", " window:100,20"}) {
        check(format("{} b1 sq300 sk300 h2 d64{} data:nonfinite seed:{}", type, mask, seed), 64);
        check(format("{} b1 sq200 sk300 h2 hk1 d128{} data:nonfinite seed:{}", type, mask, seed),
              128);
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda::test
