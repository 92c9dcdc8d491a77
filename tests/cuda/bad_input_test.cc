// Calls that may not run: a status and a text, nothing written, no error left in the CUDA runtime,
// the current device as it was, and the next call works.
#include <functional>
#include <string>
#include <vector>

#include "tests/cuda/device_case.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

class BadInput : public DeviceTest {
 protected:
  struct Bad {
    const char* name;
    std::function<void(tilewise_forward_params&)> edit;
    tilewise_status status;
    const char* words;  // in the message
  };

  static void expect_refused(const char* line, const std::vector<Bad>& all) {
    DeviceCase c(line);
    const Bits want = c.run();
    const tilewise_forward_params good = c.params;
    for (const Bad& bad : all) {
      SCOPED_TRACE(bad.name);
      c.refill(case_of(line));
      bad.edit(c.params);
      EXPECT_EQ(c.launch(), bad.status);
      const std::string message = tilewise_last_error();
      EXPECT_NE(message.find(bad.words), std::string::npos) << message;
      EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
      int device = -1;
      EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
      EXPECT_EQ(device, 0);
      EXPECT_TRUE(c.untouched());
      c.params = good;
      EXPECT_TRUE(c.run() == want);
    }
  }
};

const void* moved(const void* p, int bytes) { return static_cast<const char*>(p) + bytes; }

TEST_F(BadInput, IsAStatusAndLeavesNothingBehind_I1_I4_I12) {
  using P = tilewise_forward_params;
  static const float kSlope = 1;
  expect_refused(
      "bf16 b2 sq70 sk90 h4 hk2 d64 causal",
      {{"null q", [](P& p) { p.q = nullptr; }, TILEWISE_INVALID_ARGUMENT, "q is null"},
       {"null k", [](P& p) { p.k = nullptr; }, TILEWISE_INVALID_ARGUMENT, "k is null"},
       {"null v", [](P& p) { p.v = nullptr; }, TILEWISE_INVALID_ARGUMENT, "v is null"},
       {"null o", [](P& p) { p.o = nullptr; }, TILEWISE_INVALID_ARGUMENT, "o is null"},
       {"q off by a byte", [](P& p) { p.q = moved(p.q, 1); }, TILEWISE_INVALID_ARGUMENT, "aligned"},
       {"o is q", [](P& p) { p.o = const_cast<void*>(p.q); }, TILEWISE_INVALID_ARGUMENT,
        "overlaps"},
       {"lse in k", [](P& p) { p.lse = static_cast<float*>(const_cast<void*>(p.k)); },
        TILEWISE_INVALID_ARGUMENT, "overlaps"},
       {"slopes that nobody asked for", [](P& p) { p.alibi_slopes = &kSlope; },
        TILEWISE_INVALID_ARGUMENT, "alibi_slopes"},
       {"lengths of a dense problem",
        [](P& p) { p.cu_seqlens_q = static_cast<const int32_t*>(p.q); }, TILEWISE_INVALID_ARGUMENT,
        "cu_seqlens_q"},
       {"struct_size", [](P& p) { p.struct_size = 8; }, TILEWISE_INVALID_ARGUMENT, "struct_size"}});
}

TEST_F(BadInput, WorkspacesOfSplits_I11) {
  using P = tilewise_forward_params;
  const char* line = "bf16 b1 sq1 sk5000 h8 hk1 d128";
  ASSERT_GT(info_of(make_plan(case_of(line).problem)).workspace_bytes, 0u);
  expect_refused(
      line,
      {{"null", [](P& p) { p.workspace = nullptr; }, TILEWISE_WORKSPACE, "null"},
       {"short by a byte", [](P& p) { --p.workspace_bytes; }, TILEWISE_WORKSPACE, "needs"},
       {"off by 32 bytes", [](P& p) { p.workspace = const_cast<void*>(moved(p.workspace, 32)); },
        TILEWISE_WORKSPACE, "aligned to 64"},
       {"o in it", [](P& p) { p.o = p.workspace; }, TILEWISE_INVALID_ARGUMENT, "overlaps"}});
}

// A call does not take an error of the caller's for its own. (It may clear it: the CUDA runtime
// does in cudaFuncSetAttribute.)
TEST_F(BadInput, AnErrorOfTheCallersIsNotOurs) {
  DeviceCase c("fp16 b1 sq70 h2 d64");
  const Bits want = c.run();
  c.refill(case_of("fp16 b1 sq70 h2 d64"));
  void* never = nullptr;
  EXPECT_EQ(cudaMalloc(&never, SIZE_MAX / 2), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(c.launch(), TILEWISE_OK) << tilewise_last_error();
  (void)cudaGetLastError();
  EXPECT_TRUE(c.outputs() == want);
}

class TwoDevices : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    int count = 0;
    if (!IsSkipped() && (cudaGetDeviceCount(&count) != cudaSuccess || count < 2)) {
      GTEST_SKIP() << "one CUDA device";
    }
  }
  void TearDown() override {
    (void)cudaSetDevice(0);
    DeviceTest::TearDown();
  }
};

TEST_F(TwoDevices, TheWrongCurrentDeviceIsRefused_C5_I7_B057) {
  DeviceCase c("bf16 b1 sq70 h2 d64");
  const Bits want = c.run();
  c.refill(case_of("bf16 b1 sq70 h2 d64"));
  require(cudaSetDevice(1));
  EXPECT_EQ(c.launch(), TILEWISE_INVALID_ARGUMENT);
  const std::string message = tilewise_last_error();
  EXPECT_NE(message.find("current CUDA device is 1, the plan's is 0"), std::string::npos)
      << message;
  int current = -1;
  EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 1);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  require(cudaSetDevice(0));
  EXPECT_TRUE(c.untouched());
  EXPECT_TRUE(c.run() == want);
}

TEST_F(TwoDevices, AStreamOfTheOtherDeviceIsRefused_I7) {
  require(cudaSetDevice(1));
  const Stream other;
  require(cudaSetDevice(0));
  DeviceCase c("bf16 b1 sq70 h2 d64", other.get());
  EXPECT_EQ(c.launch(), TILEWISE_INVALID_ARGUMENT);
  const std::string message = tilewise_last_error();
  EXPECT_NE(message.find("stream is of CUDA device 1, the plan's is 0"), std::string::npos)
      << message;
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_TRUE(c.untouched());
}

TEST_F(TwoDevices, TakeTurns_C5) {
  for (const char* line : {"bf16 b2 sq130 sk200 h4 d64 causal", "bf16 b1 sq1 sk5000 h8 hk1 d128"}) {
    const ProblemCase problem = case_of(line);
    DeviceCase first(problem, nullptr, nullptr, 0);
    DeviceCase second(problem, nullptr, nullptr, 1);
    for (int round = 0; round < 3; ++round) {
      require(cudaSetDevice(0));
      const Bits a = first.run();
      require(cudaSetDevice(1));
      const Bits b = second.run();
      EXPECT_TRUE(a == b) << line;
      int current = -1;
      EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
      EXPECT_EQ(current, 1);
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda::test
