// Plans of the CUDA kernels for devices that are only described: which kernel is chosen, in how
// many pieces, with what workspace, and why the others are not. Needs no device.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "cuda/sm90/forward_tile.h"
#include "cuda/tile_config.h"
#include "harness/problem_abi.h"
#include "tests/cuda/plans.h"
#include "tilewise/tilewise.h"

namespace tilewise::cuda {
namespace {

TEST_F(CudaPlans, TheSmallestTileThatHoldsTheHeadDim) {
  for (const Device& device : {kA100, kH200}) {
    for (const char* dtype : {"fp16", "bf16"}) {
      for (int d = 1; d <= 256; ++d) {
        const int tile = d <= 64 ? 64 : d <= 96 ? 96 : d <= 128 ? 128 : d <= 192 ? 192 : 256;
        const std::string name = chosen(format("{} b2 sq300 h4 d{}", dtype, d), device);
        EXPECT_TRUE(contains(name, format(".forward.d{}.", tile))) << d << ": " << name;
        EXPECT_TRUE(contains(name, dtype)) << name;
      }
    }
  }
  EXPECT_TRUE(contains(chosen("bf16 b1 sq9 h1 d64 dv192", kH200), ".d192."));
  EXPECT_TRUE(contains(chosen("bf16 b1 sq9 h1 d192 dv64", kH200), ".d192."));
}

TEST_F(CudaPlans, TheKernelWithTheFewestFeaturesThatSuffice) {
  const std::string shape = "bf16 b2 sq300 h4 d64";
  for (const char* rest : {"", " scale:0.1", " layout:bhsd"}) {
    EXPECT_TRUE(contains(chosen(shape + rest, kA100), ".full.")) << rest;
  }
  for (const char* rest : {" causal", " window:9,9", " causal topleft", " window:-1,3"}) {
    EXPECT_TRUE(contains(chosen(shape + rest, kA100), ".banded.")) << rest;
  }
  for (const char* rest : {" softcap:20", " alibi", " scale:0", " scale:-1", " softcap:3 causal",
                           " stride:k=99999,257,65", " stride:o=99999,260,65"}) {
    EXPECT_TRUE(contains(chosen(shape + rest, kA100), ".general.")) << rest;
  }
  EXPECT_TRUE(contains(chosen("bf16 b2 sq300 h4 d63", kA100), ".general."));  // rows of 126 bytes
  // The stride of an axis of size 1 steps nowhere.
  EXPECT_TRUE(contains(chosen("bf16 b1 sq300 h1 d64 stride:k=99999,64,65", kA100), ".full."));
}

TEST_F(CudaPlans, RefusalsSayWhy_B121_B124) {
  const char* const full = "sm80.forward.d64.full.bf16";
  EXPECT_EQ(reason("bf16 b1 sq9 h1 d64", kV100, full), "needs sm_80, the device is sm_70");
  EXPECT_EQ(reason("fp16 b1 sq9 h1 d64", kA100, full), "dtype is fp16, not bf16");
  EXPECT_EQ(reason("bf16 b1 sq9 h1 d65", kA100, full), "head_dim 65 > 64");
  EXPECT_EQ(reason("bf16 b1 sq9 h1 d64 dv65", kA100, full), "head_dim_v 65 > 64");
  EXPECT_EQ(reason("bf16 b1 sq9 h65536 d64", kA100, full), "num_heads 65536 > 65535");
  EXPECT_EQ(reason("bf16 b1 sq9 h1 d64 causal", kA100, full), "has no causal or window mask");
  EXPECT_EQ(reason("bf16 b1 sq9 h1 d64 softcap:2", kA100, full),
            "has no softcap, ALiBi or scale <= 0");
  Device cpu;
  EXPECT_EQ(reason("bf16 b1 sq9 h1 d64", cpu, full), "tensors are not on a CUDA device");
  for (const char* line : {"fp32 b1 sq9 h1 d64", "bf16 b1 sq9 h1 d257", "bf16 b1 sq9 h65536 d8"}) {
    const Result<Plan> none = plan(line, kH200);
    ASSERT_FALSE(none.ok()) << line;
    EXPECT_EQ(none.status().code(), StatusCode::kUnsupported);
    for (const KernelEntry* entry : registry_.entries()) {
      EXPECT_TRUE(contains(none.status().message(), std::string(entry->name) + ": ")) << line;
    }
  }
  EXPECT_FALSE(plan("bf16 b1 sq9 h1 d64", kV100).ok());
  EXPECT_TRUE(plan("bf16 b1 sq9 h1 d64", kRtx5090).ok());
}

// Whatever the limit, the chosen kernel's tile fits, or the refusal names the bytes.
TEST_F(CudaPlans, SharedMemoryLimits_B113) {
  for (const int32_t limit : {16, 48, 64, 99, 100, 163, 227}) {
    const Device device = device_of(86, 82, limit * kKiB);
    for (const int d : {16, 64, 96, 128, 192, 256}) {
      for (const char* dtype : {"fp16", "bf16"}) {
        for (const char* mask : {"", " causal", " softcap:9"}) {
          const std::string line = format("{} b1 sq256 h2 d{}{}", dtype, d, mask);
          const Result<Plan> p = plan(line, device);
          if (!p.ok()) {
            EXPECT_EQ(p.status().code(), StatusCode::kUnsupported);
            EXPECT_TRUE(contains(p.status().message(), "bytes of shared memory, the device has " +
                                                           std::to_string(limit * kKiB)))
                << line << ": " << p.status().message();
            continue;
          }
          const std::string name(p->entry->name);
          const int tile = std::atoi(name.c_str() + name.find(".d") + 2);
          EXPECT_GE(tile, d);
          EXPECT_LE(forward_tile_sm80(tile, Variant::kGeneral).forward_smem_bytes(), limit * kKiB)
              << line << " on " << limit << " KiB got " << name;
        }
      }
    }
  }
  EXPECT_TRUE(plan("bf16 b1 sq256 h2 d128 causal", kRtx3090).ok());
  EXPECT_TRUE(plan("bf16 b1 sq256 h2 d256 causal", kH200).ok());
}

TEST_F(CudaPlans, ShortQueriesAreSplitToFillTheDevice) {
  const std::string decode = "bf16 b1 sq1 sk9000 h8 hk2 d128";
  const Result<Plan> large = plan(decode, kH200),
                     small = plan(decode, device_of(80, 4, 163 * kKiB)),
                     one = plan(decode, device_of(80, 1, 163 * kKiB));
  ASSERT_TRUE(large.ok() && small.ok() && one.ok());
  EXPECT_GT(large->shape.num_splits, small->shape.num_splits);
  EXPECT_EQ(large->workspace_bytes, int64_t{large->shape.num_splits} * 8 * (128 + 1) * 4);
  EXPECT_EQ(one->shape.num_splits, 1);
  EXPECT_EQ(one->workspace_bytes, 0);
  EXPECT_EQ(plan("bf16 b64 sq1000 sk9000 h8 hk2 d128", kH200)->shape.num_splits, 1);
  EXPECT_EQ(plan("bf16 b1 sq1 sk64 h1 d128", kH200)->shape.num_splits, 1);
}

// Every piece has keys, and together they have all of them.
TEST_F(CudaPlans, PiecesAreNeitherEmptyNorMany_B002) {
  for (const int num_sms : {1, 7, 108, 132, 1000}) {
    for (const int64_t sk : {0, 1, 63, 64, 65, 500, 512, 513, 4096, 9000, 100000, 1 << 24}) {
      for (const char* shape : {"b1 sq1 h1 d64", "b3 sq5 h8 d128", "b1 sq200 h2 d256"}) {
        const std::string text(shape);
        const size_t after_sq = text.find(' ', text.find("sq"));
        const std::string line =
            "bf16 " + text.substr(0, after_sq) + format(" sk{}", sk) + text.substr(after_sq);
        const Result<Plan> p = plan(line, device_of(86, num_sms, 227 * kKiB));
        ASSERT_TRUE(p.ok()) << line << p.status().message();
        const std::string name(p->entry->name);
        const int tile = std::atoi(name.c_str() + name.find(".d") + 2);
        const int block_n = forward_tile_sm80(tile, Variant::kFull).block_n;
        const int64_t splits = p->shape.num_splits, steps = (sk + block_n - 1) / block_n;
        EXPECT_GE(splits, 1);
        EXPECT_LE(splits, 256);
        const int64_t each = (steps + splits - 1) / splits;
        EXPECT_LT((splits - 1) * each, std::max<int64_t>(1, steps)) << line << " on " << num_sms;
        EXPECT_EQ(p->workspace_bytes > 0, splits > 1);
        EXPECT_EQ(
            p->workspace_bytes,
            splits > 1 ? splits * p->problem.num_rows() * (p->problem.head_dim_v + 1) * 4 : 0);
      }
    }
  }
}

// Splits, workspace and kernel follow from shapes: what a graph was captured with stays right.
TEST_F(CudaPlans, KernelAndSplitsIgnoreTotals_B118) {
  const Result<Plan> some = plan("bf16 varlen:b=4:total=100,9000:max=40,4000 h8 hk2 d128", kH200);
  const Result<Plan> other = plan("bf16 varlen:b=4:total=60,5000:max=40,4000 h8 hk2 d128", kH200);
  ASSERT_TRUE(some.ok() && other.ok());
  EXPECT_EQ(some->entry, other->entry);
  EXPECT_EQ(some->shape.num_splits, other->shape.num_splits);
}

TEST_F(CudaPlans, LargeSizesAreCountedIn64Bits_B091) {
  EXPECT_TRUE(plan("bf16 b4096 sq65536 h128 d128", kA100).ok());
  EXPECT_EQ(plan("bf16 b4096 sq65536 h128 d128", kA100)->workspace_bytes, 0);
  const Result<Plan> hopper = plan("bf16 b4096 sq65536 h128 d128", kH200);
  ASSERT_TRUE(hopper.ok());
  EXPECT_EQ(hopper->workspace_bytes, has_sm90() ? (int64_t{4096} * 128 * 512 + 1) * 4 : 0);
  EXPECT_TRUE(
      contains(chosen("bf16 b1 sq600000000 sk1 h1 d8", kH200), "sequences of 600000000 and 1"));
  EXPECT_TRUE(contains(chosen("bf16 b600000000 sq1 h1 d8", kH200), "batch 600000000"));
}

TEST_F(CudaPlans, HopperHasKernelsOfItsOwn) {
  if (!has_sm90()) GTEST_SKIP() << "built without the kernels of sm_90a";
  for (const char* rest : {"", " causal", " window:100,30", " causal topleft", " layout:bhsd"}) {
    for (const int d : {8, 64, 96, 128, 192, 256}) {
      const std::string line = format("bf16 b2 sq1000 sk1500 h16 hk4 d{}{}", d, rest);
      EXPECT_EQ(chosen(line, kH200).substr(0, 5), "sm90.") << line << chosen(line, kH200);
      if (d > 128) continue;  // more shared memory than the others have
      EXPECT_EQ(chosen(line, kA100).substr(0, 5), "sm80.") << line;
      EXPECT_EQ(chosen(line, kRtx5090).substr(0, 5), "sm80.") << line;
    }
  }
  EXPECT_EQ(chosen("bf16 b1 sq4096 h8 d64 causal", kH200), "sm90.forward.d64.long.bf16");
  EXPECT_EQ(chosen("bf16 b1 sq4096 h8 d64 window:999,0", kH200), "sm90.forward.d64.banded.bf16");
  EXPECT_EQ(chosen("bf16 b1 sq4095 h8 d64 causal", kH200), "sm90.forward.d64.banded.bf16");
  EXPECT_EQ(chosen("fp16 b1 sq1000 h1 d64 dv72", kH200), "sm90.forward.d96.full.fp16");
  EXPECT_EQ(chosen("bf16 b1 sq200 h2 d64 backward", kH200), "sm90.backward.d64.full.bf16");
}

TEST_F(CudaPlans, HopperRefusalsSayWhy) {
  if (!has_sm90()) GTEST_SKIP() << "built without the kernels of sm_90a";
  const char* const full = "sm90.forward.d64.full.bf16";
  EXPECT_EQ(reason("bf16 b1 sq9 h1 d64", kA100, full), "needs sm_90, the device is sm_80");
  EXPECT_EQ(reason("bf16 b1 sq9 h1 d64", kRtx5090, full), "needs sm_90, the device is sm_120");
  EXPECT_EQ(reason("bf16 b1 sq9 h1 d64", Device(), full), "tensors are not on a CUDA device");
  EXPECT_EQ(reason("bf16 b1 sq9 h1 d64", device_of(90, 132, 99 * kKiB), full),
            format("needs {} bytes of shared memory, the device has {}",
                   sm90::forward_tile(64, Variant::kFull, 192).smem_bytes(), 99 * kKiB));
  EXPECT_EQ(reason("bf16 b1 sq9 h1 d64 causal", kH200, full), "has no causal or window mask");
  EXPECT_EQ(reason("bf16 b1 sq9 h1 d64 alibi", kH200, full), "has no softcap, ALiBi or scale <= 0");
  EXPECT_EQ(reason("bf16 b1 sq9 h1 d60", kH200, full),
            "reads vectors of 16 bytes; a head_dim of 60 and 60 is not a multiple of them");
  EXPECT_EQ(reason("bf16 varlen:q=3,7:k=3,7 h1 d64", kH200, full),
            "has no sequences of different lengths (varlen)");
  EXPECT_EQ(reason("bf16 b1 sq9 sk128 h1 d64", kH200, full), "128 keys are few");
  EXPECT_EQ(reason("bf16 b9000 sq9 sk300 h8 hk2 d64", kH200, full),
            "queries of a group of heads do not share a block; 9 of 4 heads are few");
  EXPECT_EQ(reason("bf16 b1 sq1 sk9000 h8 d64", kH200, full),
            "keys are not split; 8 blocks of queries are few for 132 SMs");
  EXPECT_EQ(reason("bf16 b100000000 sq9 sk900 h8 d64", kH200, full),
            "800000000 blocks of queries > 536870912");
}

// A counter and a link for each tile, where there are more tiles than SMs.
TEST_F(CudaPlans, HopperTilesAndWorkspace) {
  if (!has_sm90()) GTEST_SKIP() << "built without the kernels of sm_90a";
  const Result<Plan> few = plan("bf16 b1 sq768 h32 d64", kH200);  // three warpgroups: 192 rows
  ASSERT_TRUE(few.ok());
  EXPECT_EQ(few->shape.num_tasks, 32 * 4);
  EXPECT_EQ(few->workspace_bytes, 0);
  const Result<Plan> many = plan("bf16 b1 sq513 h32 d64 causal", kH200);
  ASSERT_TRUE(many.ok());
  EXPECT_EQ(many->shape.num_tasks, 32 * 5);
  EXPECT_EQ(many->workspace_bytes, (1 + 32 * 5) * 4);
}

TEST(CudaBackend, WithoutADeviceThePlanSaysSo) {
  int32_t count = 0;
  if (tilewise_device_count(TILEWISE_CUDA, &count) == TILEWISE_OK && count > 0) {
    GTEST_SKIP() << "there is a device";
  }
  EXPECT_EQ(std::string(tilewise_backend_note(TILEWISE_CUDA)).substr(0, 4), "off:");
  const tilewise_problem problem = harness::to_abi(*parse_problem("bf16 b1 sq9 h1 d64"));
  tilewise_plan_options options = TILEWISE_PLAN_OPTIONS_INIT;
  options.device_kind = TILEWISE_CUDA;
  tilewise_plan* plan = nullptr;
  EXPECT_EQ(tilewise_plan_create(&problem, &options, &plan), TILEWISE_DEVICE_ERROR);
  EXPECT_EQ(plan, nullptr);
  EXPECT_TRUE(contains(tilewise_last_error(), tilewise_backend_note(TILEWISE_CUDA)));
  options.device_kind = TILEWISE_CPU;
  EXPECT_EQ(tilewise_plan_create(&problem, &options, &plan), TILEWISE_OK) << tilewise_last_error();
  tilewise_plan_destroy(plan);
}

}  // namespace
}  // namespace tilewise::cuda
