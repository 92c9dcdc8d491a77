// Plans of the sm_90 backward for devices that are only described. Needs no device.
#include <string>

#include "cuda/sm90/backward_tile.h"
#include "tests/cuda/plans.h"

namespace tilewise::cuda {
namespace {

class HopperBackwardPlans : public CudaPlans {};

TEST_F(HopperBackwardPlans, TheSmallestTileThatHoldsTheHeadDim) {
  for (const char* dtype : {"fp16", "bf16"}) {
    for (int d = 1; d <= 256; ++d) {
      const std::string line = format("{} b2 sq300 h4 d{} backward", dtype, d);
      const std::string name = chosen(line, kH200), mine = chosen(line + " causal", kH200);
      if (d > 128 || d % 8 != 0) {
        EXPECT_EQ(name.substr(0, 5), "sm80.") << line;
        EXPECT_EQ(mine.substr(0, 5), "sm80.") << line;
        continue;
      }
      EXPECT_EQ(name, format("sm90.backward.d{}.full.{}", d <= 64 ? 64 : 128, dtype));
      EXPECT_EQ(mine, format("sm90.backward.d{}.banded.{}", d <= 64 ? 64 : 128, dtype));
    }
  }
  EXPECT_EQ(chosen("bf16 b1 sq9 h1 d64 dv72 backward", kH200), "sm90.backward.d128.full.bf16");
  EXPECT_EQ(chosen("bf16 b1 sq9 h1 d72 dv8 backward", kH200), "sm90.backward.d128.full.bf16");
  EXPECT_EQ(chosen("bf16 b1 sq9 h1 d64 dv192 backward", kH200), "sm80.backward.d192.full.bf16");
}

TEST_F(HopperBackwardPlans, WhatItComputes) {
  const std::string shape = "bf16 b2 sq300 h4 d128 backward";
  for (const char* rest : {"", " scale:0.1", " layout:bhsd", " deterministic"}) {
    EXPECT_EQ(chosen(shape + rest, kH200), "sm90.backward.d128.full.bf16") << rest;
  }
  for (const char* rest : {" causal", " window:9,9", " causal topleft", " window:-1,3"}) {
    EXPECT_EQ(chosen(shape + rest, kH200), "sm90.backward.d128.banded.bf16") << rest;
  }
  for (const char* rest : {" softcap:20", " alibi", " scale:0", " scale:-1", " softcap:3 causal",
                           " stride:k=300000,600,129", " stride:do=300000,600,129"}) {
    EXPECT_EQ(chosen(shape + rest, kH200), "sm80.backward.d128.general.bf16") << rest;
  }
  EXPECT_EQ(chosen(shape + " scale:1e-20", kH200), "sm80.backward.d128.full.bf16");
}

TEST_F(HopperBackwardPlans, RefusalsSayWhy) {
  const char* const full = "sm90.backward.d64.full.bf16";
  const auto why = [&](const std::string& line, const Device& device) {
    return reason(line + " backward", device, full);
  };
  EXPECT_EQ(reason("bf16 b1 sq9 h1 d64", kH200, full), "computes the backward only");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d64", kA100), "needs sm_90, the device is sm_80");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d64", kRtx5090), "needs sm_90, the device is sm_120");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d64", Device()), "tensors are not on a CUDA device");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d64", device_of(90, 132, 99 * kKiB)),
            format("needs {} bytes of shared memory, the device has {}",
                   sm90::backward_tile(64, Variant::kFull).smem_bytes(), 99 * kKiB));
  EXPECT_EQ(why("fp16 b1 sq9 h1 d64", kH200), "dtype is fp16, not bf16");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d72", kH200), "head_dim 72 > 64");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d64 causal", kH200), "has no causal or window mask");
  EXPECT_EQ(why("bf16 varlen:q=3,7:k=3,7 h1 d64", kH200),
            "has no sequences of different lengths (varlen)");
  EXPECT_TRUE(contains(why("bf16 b1 sq9 h1 d64 scale:1e-20", kH200), "divides by the scale; "));
  EXPECT_EQ(why("bf16 b100000000 sq9 sk900 h1 d64", kH200), "800000000 blocks of keys > 536870912");
}

// What sm_80's kernels have, and the counter of tiles.
TEST_F(HopperBackwardPlans, TilesAndWorkspace) {
  const auto expect = [&](const std::string& line, int64_t tiles, int64_t bytes) {
    const Result<Plan> p = plan(line + " backward", kH200);
    ASSERT_TRUE(p.ok()) << line;
    EXPECT_EQ(p->shape.num_tasks, tiles) << line;
    EXPECT_EQ(p->shape.block_rows, 128) << line;
    EXPECT_EQ(p->workspace_bytes, bytes) << line;
  };
  expect("bf16 b2 sq300 sk400 h4 hk2 d64", 2 * 2 * 4, 2560 * (256 + 8) + 256);
  expect("bf16 b2 sq300 h4 d64 deterministic", 2 * 4 * 3, 2560 * (256 + 8) + 256 + 256);
  expect("fp16 b1 sq1 h1 d80 causal", 1, 64 * (512 + 8) + 256);
}

}  // namespace
}  // namespace tilewise::cuda
