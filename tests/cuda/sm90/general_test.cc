// The general variant of the sm_90 forward: sequences of different lengths, softcap, ALiBi, scales
// that are not positive. Skipped but on sm_90.
#include <iterator>
#include <string>

#include "core/format.h"
#include "core/numeric.h"
#include "tests/cuda/check_on_device.h"
#include "tests/cuda/device_case.h"
#include "tests/cuda/sm90/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr const char* kTypes[] = {"bf16", "fp16"};

// A problem line by the general kernel of its head dim.
void check(const std::string& line, const char* kernel = "general") {
  const AttentionProblem p = case_of(line).problem;
  check_on_device(line, format("sm90.forward.d{}.{}.{}", p.head_dim <= 64 ? 64 : 128, kernel,
                               name_of(p.dtype)));
}

class HopperGeneralForward : public HopperTest {};

// Sequences that end in a tile, at its end, with one of its 64 rows' halves empty; sequences
// without queries, without keys, and without either.
TEST_F(HopperGeneralForward, SequencesAroundTiles) {
  for (const char* type : kTypes) {
    for (const char* mask : {"", " causal", " causal topleft", " window:70,20"}) {
      for (const char* lengths :
           {"q=1,63,64,65,127,128,129,300:k=300,1,95,96,97,127,128,513", "q=200,200:k=0,520",
            "q=0,200,0:k=40,600,0", "q=5,0,0,200:k=513,0,7,1", "q=300:k=600",
            "q=1,1,1,1,190:k=1,1,1,1,640", "q=64,128,192:k=576,128,64"}) {
        for (const int d : {40, 64, 96, 128}) {
          check(format("{} varlen:{} h2 d{}{}", type, lengths, d, mask));
        }
      }
    }
  }
}

// More tiles than SMs, groups of heads, and more places for tiles than tiles.
TEST_F(HopperGeneralForward, ManySequences) {
  std::string ones = "1", mixed = "300", keys = "600";
  for (int i = 1; i < 300; ++i) {
    ones += ",1";
    mixed += format(",{}", i * 37 % 131);
    keys += format(",{}", i * 53 % 201);
  }
  for (const char* type : kTypes) {
    check(format("{} varlen:q={}:k={} h2 d64 causal", type, ones, keys));
    check(format("{} varlen:q={}:k={} h4 hk2 d128 causal", type, mixed, keys));
    check(format("{} varlen:q=700,20,300:k=700,1500,10 h16 hk4 d64 causal", type));
    check(format("{} varlen:q=700,20,300:k=700,1500,10 h16 hk2 d128", type));
  }
}

TEST_F(HopperGeneralForward, SoftcapAlibiScale) {
  for (const char* type : kTypes) {
    for (const int d : {64, 128}) {
      for (const char* rest :
           {"softcap:20", "softcap:3 causal", "alibi", "alibi causal", "alibi window:300,10",
            "scale:-0.3", "scale:0 causal", "softcap:5 alibi scale:4 causal topleft"}) {
        check(format("{} b2 sq300 sk500 h4 hk2 d{} {}", type, d, rest));
        check(format("{} varlen:q=200,3,300:k=600,60,300 h4 d{} {}", type, d, rest));
      }
      check(format("{} b1 sq150 sk200 h70 d{} softcap:20", type, d));  // more tiles than SMs
      check(format("{} b1 sq150 sk200 h70 d{} alibi causal", type, d));
    }
  }
}

TEST_F(HopperGeneralForward, RowsOutOfRangeAreComputedAgain) {
  for (const char* type : kTypes) {
    for (const char* data : {"large", "needle", "low", "high", "huge", "largest"}) {
      for (const char* rest : {"", " causal"}) {
        check(format("{} varlen:q=700,90,1:k=700,900,300 h2 d64{} data:{}", type, rest, data));
        check(format("{} varlen:q=300,90,1:k=700,900,300 h2 d128{} data:{}", type, rest, data));
      }
      check(format("{} b1 sq500 h2 d128 causal softcap:30 data:{}", type, data));
      check(format("{} b1 sq500 h2 d64 alibi data:{}", type, data));
    }
    for (int seed = 0; seed < 6; ++seed) {
      const std::string rest = format("data:nonfinite seed:{}", seed);
      check(format("{} varlen:q=100,150,50:k=600,50,200 h2 d64 causal {}", type, rest));
      check(format("{} varlen:q=100,150,50:k=300,50,200 h2 d128 {}", type, rest));
      check(format("{} b1 sq300 h2 d128 alibi {}", type, rest));
    }
  }
}

// Heads of a group in a tile, keys in pieces, some of them without a key that a row sees, and both.
TEST_F(HopperGeneralForward, FewQueries) {
  constexpr const char* kMasks[] = {" causal", " window:700,0", " alibi causal", " softcap:9"};
  size_t turn = 0;  // a mask for each problem, and in turn
  for (const char* type : kTypes) {
    for (const int d : {40, 64, 96, 128}) {
      for (const char* rest :
           {"b3 sq1 sk300 h8 hk2", "b3 sq1 sk9000 h4 hk1", "b1 sq128 sk5000 h1",
            "b2 sq9 sk700 h16 hk2", "b1 sq2 sk3000 h64 hk1", "b1 sq3 sk5000 h16 hk2",
            "b70 sq4 sk140 h16 hk2", "varlen:q=1,0,5,2:k=5000,300,0,90 h8 hk2",
            "varlen:q=1,40,60:k=300,4000,900 h2"}) {
        check(format("{} {} d{}", type, rest, d), "few");
        check(format("{} {} d{}{}", type, rest, d, kMasks[turn++ % std::size(kMasks)]), "few");
      }
      for (int seed = 0; seed < 2; ++seed) {
        const std::string data = format("data:nonfinite seed:{}", seed);
        check(format("{} b1 sq9 sk4000 h8 hk2 d{} causal {}", type, d, data), "few");
      }
      for (const char* data : {"large", "needle", "low", "high"}) {
        check(format("{} b1 sq5 sk4000 h8 hk2 d{} data:{}", type, d, data), "few");
      }
    }
    // At d = 40 a score of 2^30 d times the scale is not exact in fp32, and the row becomes NaN: no
    // kernel with fma(s, scale, -reference) computes that.
    for (const int d : {64, 128}) {
      check(format("{} b1 sq5 sk4000 h8 hk2 d{} data:huge", type, d), "few");
    }
  }
}

// Where a partial tile and the tile of the next sequence are stored at the same time.
TEST_F(HopperGeneralForward, TheSameBitsEveryTime) {
  for (const char* type : kTypes) {
    DeviceCase c(format("{} varlen:q=65,127,1,130,64,190:k=300,200,129,600,64,31 h16 d64", type));
    ASSERT_EQ(std::string(info_of(c.plan()).kernel), format("sm90.forward.d64.general.{}", type));
    const Bits first = c.run();
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(c.run() == first) << i;
  }
}

}  // namespace
}  // namespace tilewise::cuda::test
