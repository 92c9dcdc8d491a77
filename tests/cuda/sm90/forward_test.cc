// The sm_90 forward: where its tiles and its softmax have edges. The rules of accuracy are those of
// every kernel; tests/cuda/forward_test.cc has the rest. Skipped but on sm_90.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "core/format.h"
#include "core/numeric.h"
#include "tests/cuda/check_on_device.h"
#include "tests/cuda/device_case.h"
#include "tests/cuda/sm90/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr const char* kTypes[] = {"bf16", "fp16"};

// A problem line by the kernel of this tile.
void check(const std::string& line, int tile) {
  const ProblemCase c = case_of(line);
  const char* mask = c.problem.mask.is_full() ? "full" : "banded";
  check_on_device(line, format("sm90.forward.d{}.{}.{}", tile, mask, name_of(c.problem.dtype)));
}

class HopperForward : public HopperTest {};

TEST_F(HopperForward, LengthsAroundTiles) {
  for (const int sq : {1, 63, 64, 65, 127, 128, 129, 300}) {
    for (const int sk : {129, 160, 255, 256, 257, 383, 640}) {
      for (const char* mask : {"", " causal", " causal topleft", " window:70,20"}) {
        check(format("bf16 b1 sq{} sk{} h2 d64{}", sq, sk, mask), 64);
      }
    }
  }
  for (const int sk : {159, 160, 161, 240, 500}) {
    check(format("fp16 b1 sq200 sk{} h2 d192 causal", sk), 192);
    check(format("bf16 b1 sq200 sk{} h2 d256 window:60,-1", sk), 256);
  }
}

TEST_F(HopperForward, HeadDimsAreFilledUp) {
  for (const char* type : kTypes) {
    for (const int d : {8, 40, 64, 72, 96, 104, 128, 136, 192, 200, 256}) {
      const int tile = d <= 64 ? 64 : d <= 96 ? 96 : d <= 128 ? 128 : d <= 192 ? 192 : 256;
      check(format("{} b2 sq200 sk300 h2 d{} causal", type, d), tile);
      check(format("{} b2 sq200 sk300 h2 d8 dv{}", type, d), tile);
    }
  }
}

// More tiles than SMs, in sections, with groups of heads, and in every layout.
TEST_F(HopperForward, ManyTiles) {
  for (const char* rest :
       {"b2 sq260 h40 d128 causal", "b2 sq260 sk400 h40 hk10 d64", "b1 sq1100 h16 d64 causal",
        "b3 sq200 sk330 h30 hk5 d64 window:200,64", "b2 sq200 h48 d64 causal layout:bhsd",
        "b2 sq150 h40 d128 layout:qkv", "b150 sq40 sk190 h2 d64 causal"}) {
    for (const char* type : kTypes) {
      const std::string line = format("{} {}", type, rest);
      check(line, static_cast<int>(case_of(line).problem.head_dim));
    }
  }
}

// Tiles of three warpgroups under a mask, which short sequences do not get.
TEST_F(HopperForward, LongSequencesUnderAMask) {
  for (const char* type : kTypes) {
    const std::string kernel = format("sm90.forward.d64.long.{}", type);
    for (const char* rest : {"causal", "causal topleft scale:4", "window:-1,300"}) {
      check_on_device(format("{} b1 sq4100 sk4200 h4 d16 {}", type, rest), kernel);
    }
  }
}

// Rows whose references have to move: by more than the types' range, by more than 2^127, and rows
// that see keys in their last steps only.
TEST_F(HopperForward, RowsOutOfRangeAreComputedAgain) {
  for (const char* type : kTypes) {
    for (const char* scale : {"1", "4", "40"}) {
      for (const char* mask : {"", " causal", " window:300,10"}) {
        check(format("{} b2 sq700 sk700 h2 d64{} scale:{}", type, mask, scale), 64);
        const int heads = std::strcmp(scale, "40") == 0 ? 70 : 2;  // more tiles than SMs, and few
        check(format("{} b1 sq130 sk600 h{} d128{} scale:{}", type, heads, mask, scale), 128);
      }
    }
    for (const char* data : {"large", "needle", "low", "high", "huge", "largest"}) {
      check(format("{} b2 sq700 h2 d64 causal data:{}", type, data), 64);
      check(format("{} b2 sq300 sk1000 h2 d128 data:{} seed:3", type, data), 128);
    }
  }
}

TEST_F(HopperForward, NonFiniteInputs) {
  for (const char* type : kTypes) {
    for (int seed = 0; seed < 6; ++seed) {
      for (const char* mask : {"", " causal", " window:100,20"}) {
        check(format("{} b1 sq300 sk300 h2 d64{} data:nonfinite seed:{}", type, mask, seed), 64);
        check(format("{} b1 sq200 sk700 h1 d128{} data:nonfinite seed:{}", type, mask, seed), 128);
      }
    }
  }
}

// One element of an input is 0, or not finite: rows that do not see it have the same bits.
class HiddenElements : public HopperTest {
 protected:
  static constexpr int kLength = 300, kDim = 64;
  std::unique_ptr<DeviceCase> case_;
  int num_queries_ = kLength, num_keys_ = kLength;  // of all sequences

  void SetUp() override {
    HopperTest::SetUp();
    if (!IsSkipped()) case_ = std::make_unique<DeviceCase>("bf16 b1 sq300 sk300 h1 d64 causal");
  }

  // The bits with element (row, 7) of one of the inputs replaced.
  Bits with(const void* tilewise_forward_params::*input, int row, int value) {
    const int rows = input == &tilewise_forward_params::q ? num_queries_ : num_keys_;
    std::vector<uint16_t> x(rows * kDim);
    const void* const original = case_->params.*input;
    require(cudaMemcpy(x.data(), original, 2 * x.size(), cudaMemcpyDeviceToHost));
    x[row * kDim + 7] = static_cast<uint16_t>(value);
    const DeviceArray<uint16_t> changed(x);
    case_->params.*input = changed.data();
    const Bits bits = case_->run();
    case_->params.*input = original;
    return bits;
  }
  // Rows [first, end) of two results.
  static bool equal(const Bits& a, const Bits& b, int first, int end) {
    const size_t bytes = 2 * kDim;
    return std::equal(a.elements.begin() + first * bytes, a.elements.begin() + end * bytes,
                      b.elements.begin() + first * bytes) &&
           std::memcmp(&a.lse[first], &b.lse[first], (end - first) * sizeof(float)) == 0;
  }
};

TEST_F(HiddenElements, AreBitIdenticalToZero) {
  ASSERT_EQ(std::string(info_of(case_->plan()).kernel), "sm90.forward.d64.banded.bf16");
  for (const int value : {0x7f80, 0xff80, 0x7fc0}) {  // inf, -inf, NaN
    for (const int row : {0, 40, 127, 128, 200, 299}) {
      const Bits v_zero = with(&tilewise_forward_params::v, row, 0),
                 v_bad = with(&tilewise_forward_params::v, row, value);
      EXPECT_TRUE(equal(v_zero, v_bad, 0, row)) << "v " << row;
      const Bits k_zero = with(&tilewise_forward_params::k, row, 0),
                 k_bad = with(&tilewise_forward_params::k, row, value);
      EXPECT_TRUE(equal(k_zero, k_bad, 0, row)) << "k " << row;
      const Bits q_zero = with(&tilewise_forward_params::q, row, 0),
                 q_bad = with(&tilewise_forward_params::q, row, value);
      EXPECT_TRUE(equal(q_zero, q_bad, 0, row)) << "q " << row;
      EXPECT_TRUE(equal(q_zero, q_bad, row + 1, kLength)) << "q " << row;
      EXPECT_FALSE(equal(q_zero, q_bad, row, row + 1)) << "q " << row;
    }
  }
}

// What belongs to another sequence, right behind the keys and queries of one, is not seen.
TEST_F(HiddenElements, OfOtherSequencesAreBitIdenticalToZero) {
  case_ = std::make_unique<DeviceCase>("bf16 varlen:q=100,200:k=140,560 h1 d64");
  num_keys_ = 700;
  ASSERT_EQ(std::string(info_of(case_->plan()).kernel), "sm90.forward.d64.general.bf16");
  for (const int value : {0x7f80, 0xff80, 0x7fc0}) {  // inf, -inf, NaN
    for (const auto input : {&tilewise_forward_params::k, &tilewise_forward_params::v}) {
      for (const int key : {0, 139, 140, 200, 299}) {
        const Bits zero = with(input, key, 0), bad = with(input, key, value);
        if (key < 140) {
          EXPECT_TRUE(equal(zero, bad, 100, 300)) << key;
        } else {
          EXPECT_TRUE(equal(zero, bad, 0, 100)) << key;
        }
        EXPECT_FALSE(equal(zero, bad, 0, 300)) << key;
      }
    }
    for (const int row : {0, 99, 100, 299}) {
      const Bits zero = with(&tilewise_forward_params::q, row, 0),
                 bad = with(&tilewise_forward_params::q, row, value);
      EXPECT_TRUE(equal(zero, bad, 0, row)) << row;
      EXPECT_TRUE(equal(zero, bad, row + 1, 300)) << row;
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda::test
