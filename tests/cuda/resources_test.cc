// Device memory: calls take none, and a device that is full is an exception that leaves none behind
// (C7, C8, B138).
#include <algorithm>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <vector>

#include "harness/data.h"
#include "harness/run.h"
#include "tests/cuda/device_case.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr size_t kMiB = 1 << 20;

size_t free_bytes() {
  size_t free = 0, total = 0;
  require(cudaMemGetInfo(&free, &total));
  return free;
}

class DeviceMemory : public DeviceTest {};

TEST_F(DeviceMemory, TenThousandCallsTakeNone_C8_B138) {
  DeviceCase cases[] = {DeviceCase("bf16 b2 sq130 sk200 h4 hk2 d64 causal"),
                        DeviceCase("fp16 b1 sq257 h2 d128"),
                        DeviceCase("bf16 b1 sq1 sk5000 h8 hk1 d128"),
                        DeviceCase("fp16 b1 sq77 h4 d80 softcap:20"),
                        DeviceCase("bf16 varlen:q=3,70,0,20:k=90,70,5,33 h4 hk2 d256 causal"),
                        DeviceCase("bf16 b1 sq130 sk200 h2 hk1 d64 causal backward"),
                        DeviceCase("fp16 b1 sq77 h2 d128 backward deterministic")};
  size_t after_100 = 0;
  for (int i = 0; i < 10000; ++i) {
    if (i == 100) {
      require(cudaDeviceSynchronize());
      after_100 = free_bytes();
    }
    const DeviceCase& c = cases[i % std::size(cases)];
    ASSERT_EQ(c.launch(), TILEWISE_OK) << tilewise_last_error();
  }
  require(cudaDeviceSynchronize());
  EXPECT_LE(after_100 - std::min(after_100, free_bytes()), kMiB);
}

TEST_F(DeviceMemory, WhenItIsFullTheHarnessGivesBackWhatItTook_C7) {
  harness::Tensors tensors(case_of("bf16 b1 sq65536 h8 d128"));  // 128 MiB a tensor
  harness::RunOptions options;
  options.cuda_device = 0;
  const size_t left = 300 * kMiB;  // for two of the four
  { DeviceCase warm("bf16 b1 sq8 h1 d128"); }
  const size_t before = free_bytes();
  {
    const DeviceArray<std::byte> held(before - left);
    const size_t held_before = free_bytes();
    for (int i = 0; i < 3; ++i) {
      EXPECT_THROW(harness::PreparedRun(tensors, Direction::kForward, options), std::runtime_error);
      EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
      EXPECT_LE(held_before - std::min(held_before, free_bytes()), kMiB);
    }
  }
  EXPECT_NO_THROW(harness::PreparedRun(tensors, Direction::kForward, options));
  EXPECT_LE(before - std::min(before, free_bytes()), kMiB);
}

// The library itself needs none, so that a full device is no matter to it.
TEST_F(DeviceMemory, CallsWorkWhenItIsFull_C7) {
  const char* line = "bf16 b1 sq1 sk5000 h8 hk1 d128";
  DeviceCase c(line);
  const Bits want = c.run();
  c.refill(case_of(line));
  std::vector<std::unique_ptr<DeviceArray<std::byte>>> held;
  for (size_t bytes = free_bytes(); bytes >= 64 * 1024;) {
    void* probe = nullptr;
    if (cudaMalloc(&probe, bytes) != cudaSuccess) {
      (void)cudaGetLastError();
      bytes /= 2;
      continue;
    }
    require(cudaFree(probe));
    held.push_back(std::make_unique<DeviceArray<std::byte>>(bytes));
  }
  EXPECT_TRUE(c.run() == want);
}

}  // namespace
}  // namespace tilewise::cuda::test
