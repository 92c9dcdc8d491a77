// Plans of the sm_90 forward's general variant. Needs no device.
#include <string>

#include "core/format.h"
#include "tests/cuda/plans.h"

namespace tilewise::cuda {
namespace {

class HopperGeneralPlans : public CudaPlans {};

TEST_F(HopperGeneralPlans, WhatTheOthersDoNotHave) {
  for (const char* rest :
       {"b2 sq1000 h8 d{} softcap:9", "b2 sq1000 h8 d{} alibi causal", "b2 sq1000 h8 d{} scale:-1",
        "b2 sq1000 h8 d{} scale:0", "varlen:q=300,70:k=600,90 h8 d{}",
        "varlen:q=300,70:k=600,90 h8 d{} causal"}) {
    for (const int d : {8, 64, 72, 96, 128}) {
      const std::string line = "bf16 " + format(rest, d);
      EXPECT_EQ(chosen(line, kH200), format("sm90.forward.d{}.general.bf16", d <= 64 ? 64 : 128))
          << line;
      EXPECT_EQ(chosen(line, kA100).substr(0, 5), "sm80.") << line;
    }
    EXPECT_EQ(chosen("fp16 " + format(rest, 192), kH200).substr(0, 5), "sm80.") << rest;
  }
}

TEST_F(HopperGeneralPlans, RefusalsSayWhy) {
  const char* const general = "sm90.forward.d64.general.bf16";
  EXPECT_EQ(reason("bf16 b2 sq1000 h8 d64 causal", kH200, general),
            "is for varlen, softcap, ALiBi and scale <= 0");
  EXPECT_EQ(reason("bf16 b2 sq1000 h8 d60 alibi", kH200, general),
            "reads vectors of 16 bytes; a head_dim of 60 and 60 is not a multiple of them");
  EXPECT_EQ(reason("bf16 b2 sq300 sk128 h8 d64 alibi", kH200, general), "128 keys are few");
  EXPECT_EQ(reason("bf16 varlen:q=300,70:k=512,90 h8 d64", kH200, general), "512 keys are few");
  EXPECT_EQ(reason("bf16 varlen:q=30,7:k=600,90 h8 hk2 d64", kH200, general),
            "queries of a group of heads do not share a block; 30 of 4 heads are few");
  EXPECT_EQ(reason("bf16 varlen:q=1,1:k=9000,90 h8 d64", kH200, general),
            "keys are not split; 16 blocks of queries are few for 132 SMs");
}

// A place for each 128 tokens and one for each sequence, of each head; a counter and their links.
TEST_F(HopperGeneralPlans, PlacesForTilesFollowFromTotals) {
  const Result<Plan> many = plan("bf16 varlen:q=300,70,0:k=600,90,0 h40 d64", kH200);
  ASSERT_TRUE(many.ok());
  EXPECT_EQ(many->shape.num_tasks, 40 * (370 / 128 + 3));
  EXPECT_EQ(many->workspace_bytes, (1 + 40 * (370 / 128 + 3)) * 4);
  const Result<Plan> few = plan("bf16 varlen:q=300,70:k=600,90 h8 d64", kH200);
  ASSERT_TRUE(few.ok());
  EXPECT_EQ(few->shape.num_tasks, 8 * (370 / 128 + 2));
  EXPECT_EQ(few->workspace_bytes, 0);
}

// Kernels follow from the longest lengths: what a graph was captured with stays right.
TEST_F(HopperGeneralPlans, TheKernelIgnoresTotals_B118) {
  EXPECT_EQ(chosen("bf16 varlen:b=40:total=400,9000:max=400,4000 h8 d128", kH200),
            chosen("bf16 varlen:b=40:total=9000,160000:max=400,4000 h8 d128", kH200));
}

// Chosen only by name so far.
TEST_F(HopperGeneralPlans, FewQueriesShareTilesAndSplitKeys) {
  const char* const few = "sm90.forward.d128.few.bf16";
  EXPECT_EQ(chosen("bf16 b1 sq1 sk9000 h8 hk2 d128", kH200).substr(0, 5), "sm80.");
  setenv("TILEWISE_KERNEL", few, 1);
  const Result<Plan> both = plan("bf16 b2 sq1 sk9000 h8 hk2 d128", kH200);
  ASSERT_TRUE(both.ok()) << both.status().message();
  // 4 tiles, room for 33 pieces of 94 steps: 32 of 3 steps
  EXPECT_EQ(both->shape.num_splits, 32);
  EXPECT_EQ(both->shape.num_tasks, 4 * 32);
  EXPECT_EQ(both->workspace_bytes, 32 * 16 * (128 + 1) * 4);
  const Result<Plan> shared = plan("bf16 varlen:q=3,1,0:k=900,90,500 h320 hk5 d64", kH200);
  EXPECT_FALSE(shared.ok());  // 192 rows
  const Result<Plan> packed = plan("bf16 b300 sq2 sk300 h64 hk1 d128", kH200);
  ASSERT_TRUE(packed.ok()) << packed.status().message();
  EXPECT_EQ(packed->shape.num_splits, 1);
  EXPECT_EQ(packed->shape.num_tasks, 300);
  EXPECT_EQ(packed->workspace_bytes, (1 + 300) * 4);
  unsetenv("TILEWISE_KERNEL");
  EXPECT_EQ(reason("bf16 b1 sq1 sk128 h8 hk2 d128", kH200, few), "128 keys are few");
  EXPECT_EQ(reason("bf16 b9 sq100 sk900 h8 hk2 d128", kH200, few),
            "is for heads of a group that share a block, and for keys that are split");
  EXPECT_EQ(reason("bf16 b9 sq1 sk900 h10 hk2 d128", kH200, few),  // a group of 5
            "is for heads of a group that share a block, and for keys that are split");
}

}  // namespace
}  // namespace tilewise::cuda
