// Plans of the backward for devices that are only described: which kernel, why not the others, and
// the workspace. Needs no device.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "cuda/backward_tile.h"
#include "tests/cuda/plans.h"

namespace tilewise::cuda {
namespace {

class CudaBackwardPlans : public CudaPlans {
 protected:
  int64_t workspace(const std::string& line, const Device& device = kA100) const {
    const Result<Plan> p = plan(line + " backward", device);
    EXPECT_TRUE(p.ok()) << line << ": " << p.status().message();
    return p.ok() ? p->workspace_bytes : -1;
  }
  static int tile_of(const std::string& name) {
    return std::atoi(name.c_str() + name.find(".d") + 2);
  }
  static Variant variant_of(const std::string& name) {
    return contains(name, ".full.")     ? Variant::kFull
           : contains(name, ".banded.") ? Variant::kBanded
                                        : Variant::kGeneral;
  }
};

int tile_for(int head_dim) {
  for (const int tile : {64, 96, 128, 192}) {
    if (head_dim <= tile) return tile;
  }
  return 256;
}

// At 256 the kernels without softcap and ALiBi need more shared memory than sm_80 has.
TEST_F(CudaBackwardPlans, TheSmallestTileThatHoldsTheHeadDim) {
  for (const char* dtype : {"fp16", "bf16"}) {
    for (int d = 1; d <= 256; ++d) {
      const std::string line = format("{} b2 sq300 h4 d{} backward", dtype, d);
      const int tile = tile_for(d);
      const char* fast = d % 8 == 0 ? "full" : "general";  // rows of whole vectors
      const bool hoppers = has_sm90() && d <= 128 && d % 8 == 0;
      if (!hoppers) {
        EXPECT_EQ(chosen(line, kH200), format("sm80.backward.d{}.{}.{}", tile, fast, dtype));
      }
      EXPECT_EQ(chosen(line, kA100),
                format("sm80.backward.d{}.{}.{}", tile, tile == 256 ? "general" : fast, dtype));
    }
  }
  EXPECT_EQ(chosen("bf16 b1 sq9 h1 d64 dv192 backward", kH200), "sm80.backward.d192.full.bf16");
  EXPECT_EQ(chosen("bf16 b1 sq9 h1 d192 dv64 backward", kH200), "sm80.backward.d192.full.bf16");
}

TEST_F(CudaBackwardPlans, TheKernelWithTheFewestFeaturesThatSuffice) {
  const std::string shape = "bf16 b2 sq300 h4 d128 backward";
  for (const char* rest : {"", " scale:0.1", " layout:bhsd", " deterministic"}) {
    EXPECT_EQ(chosen(shape + rest, kA100), "sm80.backward.d128.full.bf16") << rest;
  }
  for (const char* rest : {" causal", " window:9,9", " causal topleft", " window:-1,3"}) {
    EXPECT_EQ(chosen(shape + rest, kA100), "sm80.backward.d128.banded.bf16") << rest;
  }
  for (const char* rest : {" softcap:20", " alibi", " scale:0", " scale:-1", " softcap:3 causal",
                           " stride:k=300000,600,129", " stride:do=300000,600,129",
                           " stride:dq=300000,600,129", " stride:dv=300001,600,136"}) {
    EXPECT_EQ(chosen(shape + rest, kA100), "sm80.backward.d128.general.bf16") << rest;
  }
}

// With the 99 KiB of sm_86 the general kernel is the one that fits at 128, and none does beyond.
TEST_F(CudaBackwardPlans, SmallSharedMemory_B113) {
  for (const Device& device : {kRtx3090, kRtx5090}) {
    for (const char* dtype : {"fp16", "bf16"}) {
      const auto line = [&](int d, const char* rest) {
        return format("{} b1 sq256 h2 d{}{} backward", dtype, d, rest);
      };
      for (const int d : {64, 96}) {
        EXPECT_EQ(chosen(line(d, ""), device), format("sm80.backward.d{}.full.{}", d, dtype));
        EXPECT_EQ(chosen(line(d, " causal"), device),
                  format("sm80.backward.d{}.banded.{}", d, dtype));
      }
      for (const char* rest : {"", " causal", " softcap:9"}) {
        EXPECT_EQ(chosen(line(128, rest), device), format("sm80.backward.d128.general.{}", dtype));
        for (const int d : {192, 256}) {
          const Result<Plan> none = plan(line(d, rest), device);
          ASSERT_FALSE(none.ok()) << d;
          EXPECT_EQ(none.status().code(), StatusCode::kUnsupported);
          for (const KernelEntry* entry : registry_.entries()) {
            EXPECT_TRUE(contains(none.status().message(), std::string(entry->name) + ": "));
          }
        }
      }
    }
  }
  // Whatever the limit: what is chosen fits.
  for (const int32_t limit : {16, 64, 65, 73, 99, 145, 163, 208, 227}) {
    for (const int d : {16, 64, 96, 128, 192, 256}) {
      for (const char* rest : {"", " causal", " softcap:9"}) {
        const Result<Plan> p = plan(format("bf16 b1 sq256 h2 d{}{} backward", d, rest),
                                    device_of(86, 82, limit * kKiB));
        if (!p.ok()) {
          EXPECT_TRUE(contains(p.status().message(),
                               format("bytes of shared memory, the device has {}", limit * kKiB)));
          continue;
        }
        const std::string name(p->entry->name);
        EXPECT_GE(tile_of(name), d);
        EXPECT_LE(backward_tile_sm80(tile_of(name), variant_of(name)).smem_bytes(), limit * kKiB)
            << name;
      }
    }
  }
}

TEST_F(CudaBackwardPlans, RefusalsSayWhy_B121) {
  const char* const full = "sm80.backward.d64.full.bf16";
  const auto why = [&](const std::string& line, const Device& device, const char* kernel) {
    return reason(line + " backward", device, kernel);
  };
  EXPECT_EQ(reason("bf16 b1 sq9 h1 d64", kA100, full), "computes the backward only");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d64", kA100, "sm80.forward.d64.full.bf16"),
            "computes the forward only");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d64", kA100, full), "");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d64", kV100, full), "needs sm_80, the device is sm_70");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d64", device_of(80, 1, 64 * kKiB), full),
            "needs 66176 bytes of shared memory, the device has 65536");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d128", kRtx3090, "sm80.backward.d128.full.bf16"),
            "needs 164992 bytes of shared memory, the device has 101376");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d192", kRtx3090, "sm80.backward.d192.general.bf16"),
            "needs 164992 bytes of shared memory, the device has 101376");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d256", kA100, "sm80.backward.d256.banded.bf16"),
            "needs 214144 bytes of shared memory, the device has 166912");
  EXPECT_EQ(why("fp16 b1 sq9 h1 d64", kA100, full), "dtype is fp16, not bf16");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d65", kA100, full), "head_dim 65 > 64");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d64 dv65", kA100, full), "head_dim_v 65 > 64");
  EXPECT_EQ(why("bf16 b1 sq9 h65536 d64", kA100, full), "num_heads 65536 > 65535");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d64 causal", kA100, full), "has no causal or window mask");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d64 alibi", kA100, full), "has no softcap, ALiBi or scale <= 0");
  EXPECT_EQ(why("bf16 b2 sq300 h4 d64 stride:dq=99999,300,65", kA100, full),
            "reads vectors of 16 bytes; a stride of dq is not a multiple of them");
  EXPECT_EQ(why("bf16 b1 sq9 h1 d64", Device(), full), "tensors are not on a CUDA device");

  const std::string many = "bf16 b65536 sq1 sk65536 h128 d64";
  EXPECT_EQ(why(many + " deterministic", kA100, full),
            "deterministic: 4294967296 blocks of keys > 2147483647");
  EXPECT_EQ(why(many, kA100, full), "");
  EXPECT_EQ(plan(many + " backward deterministic", kA100).status().code(),
            StatusCode::kUnsupported);
}

// fp32 sums of dq over whole blocks of 64 rows with the tile's dimensions, and two numbers a row;
// deterministic, a turn for each block and the ticket. Parts are multiples of 256 bytes.
TEST_F(CudaBackwardPlans, WorkspaceOfKnownSizes) {
  EXPECT_EQ(workspace("bf16 b2 sq300 h4 d64"), 2560 * (256 + 8));  // 320 rows a head
  EXPECT_EQ(workspace("bf16 b2 sq300 h4 d64 deterministic"), 2560 * (256 + 8) + 256 + 256);
  EXPECT_EQ(workspace("fp16 b1 sq1 h1 d80 causal"), 64 * (384 + 8));
  EXPECT_EQ(workspace("fp16 b1 sq64 h3 hk1 d100 dv20 softcap:3"), 192 * (512 + 8));
  EXPECT_EQ(workspace("fp16 b9 sq64 h128 d192 deterministic"),
            9 * 128 * 64 * (768 + 8) + 4608 + 256);
  EXPECT_EQ(workspace("bf16 varlen:q=3,70,0,200:k=90,70,5,333 h4 d64"),
            4 * 512 * (256 + 8));  // 273 + 4 * 64 rows, rounded down
  EXPECT_EQ(workspace("bf16 b2 sq0 sk9 h4 d64"), 0);
}

// Longer tensors never need less. The lengths, keys, masks and the device have no part in it.
TEST_F(CudaBackwardPlans, WorkspaceGrowsWithTheTotalsOnly) {
  const auto expect_rising = [&](const char* pattern, int first, int last) {
    for (const char* rest : {"", " deterministic"}) {
      int64_t before = 0;
      for (int n = first; n <= last; ++n) {
        const int64_t bytes = workspace(format(pattern, n) + rest);
        EXPECT_GE(bytes, before) << pattern << " " << n;
        EXPECT_EQ(bytes % 256, 0);
        before = bytes;
      }
    }
  };
  expect_rising("bf16 b2 sq{} h4 d64", 1, 300);
  expect_rising("bf16 b{} sq70 h4 d64", 1, 40);
  expect_rising("bf16 b2 sq70 h{} d64", 1, 40);
  expect_rising("bf16 b2 sq70 h4 d{}", 1, 256);
  expect_rising("bf16 varlen:b=4:total={},500:max=70,200 h4 d64", 70, 280);
  expect_rising("bf16 varlen:b={}:total=70,500:max=70,200 h4 d64", 3, 40);

  const std::string varlen = "bf16 varlen:b=4:total=300,500:max=";
  const int64_t bytes = workspace(varlen + "300,500 h4 hk2 d64");
  EXPECT_EQ(workspace(varlen + "100,200 h4 hk2 d64"), bytes);
  EXPECT_EQ(workspace(varlen + "300,500 h4 hk2 d64 causal"), bytes);
  EXPECT_EQ(workspace(varlen + "300,500 h4 hk2 d64 softcap:5"), bytes);
  EXPECT_EQ(workspace("bf16 varlen:b=4:total=300,9000:max=300,9000 h4 hk2 d64"), bytes);
  EXPECT_EQ(workspace(varlen + "300,500 h4 hk2 d64", device_of(80, 1, 99 * kKiB)), bytes);
  for (const int d : {64, 96, 128, 192, 256}) {
    for (const char* rest : {"", " deterministic"}) {
      const std::string line = format("fp16 b3 sq257 sk70 h2 d{}{}", d, rest);
      EXPECT_EQ(workspace(line + " causal"), workspace(line)) << line;
      EXPECT_EQ(workspace(line + " softcap:5"), workspace(line)) << line;
      EXPECT_EQ(workspace(format("fp16 b3 sq257 sk7000 h2 d{}{}", d, rest)), workspace(line));
    }
  }
}

TEST_F(CudaBackwardPlans, DeterministicAddsTheTurns) {
  for (const char* line :
       {"bf16 b2 sq300 h4 d64", "fp16 b1 sq1 h1 d128 causal", "bf16 b64 sq4096 h16 d64",
        "bf16 varlen:b=4:total=300,500:max=99,200 h4 d96"}) {
    const int tile =
        tile_of(std::string(plan(std::string(line) + " backward", kA100)->entry->name));
    const int64_t bytes = workspace(line), rows = bytes / (4 * tile + 8);
    const int64_t turns = rows / 64 * 4;
    EXPECT_EQ(workspace(std::string(line) + " deterministic"),
              bytes + (turns + 255) / 256 * 256 + 256)
        << line;
  }
}

TEST_F(CudaBackwardPlans, KernelIgnoresTotals_B118) {
  const std::string rest = ":max=40,4000 h8 hk2 d128";
  EXPECT_EQ(chosen("bf16 varlen:b=4:total=100,9000" + rest + " backward", kH200),
            chosen("bf16 varlen:b=4:total=60,5000" + rest + " backward", kH200));
}

TEST_F(CudaBackwardPlans, LargeSizesAreCountedIn64Bits_B091) {
  EXPECT_EQ(workspace("bf16 b4096 sq65536 h128 d128"), int64_t{4096} * 65536 * 128 * (4 * 128 + 8));
  const Result<Plan> p = plan("bf16 b500000000 sq4096 sk1 h65535 d8 backward", kH200);
  ASSERT_FALSE(p.ok());
  EXPECT_EQ(p.status().code(), StatusCode::kOverflow);
  EXPECT_TRUE(contains(p.status().message(), "the sums of dq overflow 64 bits"))
      << p.status().message();
}

}  // namespace
}  // namespace tilewise::cuda
