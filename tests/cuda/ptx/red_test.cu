#include "cuda/ptx/red.cuh"

#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr int kBlocks = 200, kThreads = 128;

// Every thread adds whole numbers, whose sums are the same in any order.
__global__ void add_each(float* sums) {
  ptx::red_add(sums + threadIdx.x, static_cast<float>(blockIdx.x + 1));
  ptx::red_add(sums + (threadIdx.x + 1) % blockDim.x, static_cast<float>(threadIdx.x));
}

__global__ void add_fours([[maybe_unused]] float* sums) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  const float block = static_cast<float>(blockIdx.x);
  const float x[4] = {block, -block, 1.0f, static_cast<float>(threadIdx.x)};
  ptx::red_add_v4(sums + 4 * threadIdx.x, x);
#endif
}

class Red : public DeviceTest {};

TEST_F(Red, AdditionsFromManyBlocks) {
  const DeviceArray<float> sums(std::vector<float>(kThreads, 0.5f));
  add_each<<<kBlocks, kThreads>>>(sums.data());
  const std::vector<float> got = sums.get();
  for (int i = 0; i < kThreads; ++i) {
    const int before = (i + kThreads - 1) % kThreads;
    const float want = 0.5f + kBlocks * (kBlocks + 1) / 2 + static_cast<float>(kBlocks * before);
    EXPECT_EQ(got[i], want) << i;
  }
}

TEST_F(Red, FourNeighboursAtATime) {
  int major = 0;
  require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  cudaFuncAttributes compiled = {};
  require(cudaFuncGetAttributes(&compiled, add_fours));
  if (major < 9 || compiled.ptxVersion < 90) GTEST_SKIP() << "needs sm_90, and code for it";
  const DeviceArray<float> sums(std::vector<float>(4 * kThreads + 4, 0.5f));
  add_fours<<<kBlocks, kThreads>>>(sums.data());
  const std::vector<float> got = sums.get();
  const float blocks = kBlocks * (kBlocks - 1) / 2;
  for (int i = 0; i < kThreads; ++i) {
    EXPECT_EQ(got[4 * i], 0.5f + blocks) << i;
    EXPECT_EQ(got[4 * i + 1], 0.5f - blocks) << i;
    EXPECT_EQ(got[4 * i + 2], 0.5f + kBlocks) << i;
    EXPECT_EQ(got[4 * i + 3], 0.5f + static_cast<float>(kBlocks * i)) << i;
  }
  for (int i = 4 * kThreads; i < 4 * kThreads + 4; ++i) EXPECT_EQ(got[i], 0.5f) << i;
}

// Blocks take turns in the order in which they begin. Each has to see what all threads of the one
// before have written.
__global__ void take_turns(int32_t* ticket, int32_t* turn, int64_t* values) {
  __shared__ int32_t mine;
  if (threadIdx.x == 0) mine = atomicAdd(ticket, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    while (ptx::load_acquire(turn) != mine) __nanosleep(20);
  }
  __syncthreads();
  const int from = static_cast<int>(blockDim.x - 1 - threadIdx.x);  // another thread's
  const int64_t seen = values[mine % 2 * blockDim.x + from];
  values[(mine + 1) % 2 * blockDim.x + threadIdx.x] = seen + mine;
  __syncthreads();
  if (threadIdx.x == 0) ptx::red_add_release(turn, 1);
}

TEST_F(Red, ReleaseAndAcquireHandOverWhatWasWritten) {
  constexpr int kTurns = 5000;
  const DeviceArray<int32_t> ticket(std::vector<int32_t>{0}), turn(std::vector<int32_t>{0});
  std::vector<int64_t> start(2 * kThreads, -1);
  for (int i = 0; i < kThreads; ++i) start[i] = 1000000000 * int64_t{i};
  const DeviceArray<int64_t> values(start);
  take_turns<<<kTurns, kThreads>>>(ticket.data(), turn.data(), values.data());
  const std::vector<int64_t> got = values.get();
  EXPECT_EQ(turn.get()[0], kTurns);
  // An even number of turns: every value has come back to its place.
  for (int i = 0; i < kThreads; ++i) {
    EXPECT_EQ(got[i], start[i] + int64_t{kTurns} * (kTurns - 1) / 2) << i;
  }
}

}  // namespace
}  // namespace tilewise::cuda::test
