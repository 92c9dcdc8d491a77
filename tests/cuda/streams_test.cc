// Calls go to the caller's stream and nowhere else, from any number of threads at once.
#include <chrono>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "tests/cuda/device_case.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

class Streams : public DeviceTest {};

void sleep_a_while(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }

// What precedes a call in its stream has happened when it reads: it waits for that stream, and no
// other one.
TEST_F(Streams, CallsFollowWhatPrecedesThemInTheirStream_C2_B064) {
  for (const char* line : {"bf16 b2 sq130 sk200 h4 d64 causal", "bf16 b1 sq1 sk5000 h8 hk1 d128"}) {
    const Stream stream;
    const ProblemCase first = case_of(line);
    ProblemCase second = first;
    second.seed = 77;
    DeviceCase old(first), late(second, stream.get());
    const Bits want = late.run();
    late.refill(second);
    // The inputs are those of `old` until the stream gets to bring back its own.
    const auto copy = [&](const void* to, const void* from, TensorId id) {
      const Extents e = first.problem.extents(id);
      const size_t bytes = 2 * static_cast<size_t>(e.batch * e.seqlen * e.heads * e.dim);
      require(cudaMemcpyAsync(const_cast<void*>(to), from, bytes, cudaMemcpyDeviceToDevice,
                              stream.get()));
    };
    const DeviceCase source(second);
    copy(late.params.q, old.params.q, TensorId::kQ);
    copy(late.params.v, old.params.v, TensorId::kV);
    stream.wait();
    require(cudaLaunchHostFunc(stream.get(), sleep_a_while, nullptr));
    copy(late.params.q, source.params.q, TensorId::kQ);
    copy(late.params.v, source.params.v, TensorId::kV);
    ASSERT_EQ(late.launch(), TILEWISE_OK) << tilewise_last_error();
    EXPECT_EQ(cudaStreamQuery(stream.get()), cudaErrorNotReady) << "the call waited";
    EXPECT_TRUE(late.outputs() == want) << line;
    EXPECT_FALSE(old.run() == want);
  }
}

const char* const kLines[] = {
    "bf16 b2 sq130 sk200 h4 hk2 d64 causal",
    "fp16 b1 sq257 h2 d128",
    "bf16 b1 sq1 sk5000 h8 hk1 d128",
    "fp16 b2 sq77 sk90 h4 d80 softcap:20 alibi",
    "bf16 varlen:q=3,70,0,200:k=90,70,5,333 h4 hk2 d64 causal",
    "fp16 b1 sq100 sk300 h2 d256 window:50,20",
    "bf16 b1 sq70 sk300 h2 d192 dv128 causal",
    "fp16 b4 sq1 sk700 h16 hk4 d96 data:nonfinite",
    "bf16 b2 sq130 sk200 h4 hk2 d64 causal backward",
    "fp16 b1 sq257 h2 d128 backward deterministic",
    "fp16 b2 sq77 sk90 h4 d80 softcap:20 alibi backward deterministic",
    "bf16 varlen:q=3,70,0,200:k=90,70,5,333 h4 hk2 d64 causal backward deterministic",
    "fp16 b1 sq100 sk300 h2 d256 window:50,20 backward",
};
constexpr int kThreads = 32, kRounds = 40;

// Runs every case kRounds times on a thread and a stream of its own, and compares with `want`.
void expect_same_bits(std::vector<std::unique_ptr<DeviceCase>>& cases,
                      const std::vector<ProblemCase>& problems, const std::vector<Bits>& want) {
  for (size_t i = 0; i < cases.size(); ++i) cases[i]->refill(problems[i]);
  std::vector<std::thread> threads;
  std::vector<int> accepted(cases.size(), 0);
  for (size_t i = 0; i < cases.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < kRounds; ++round) {
        accepted[i] += cases[i]->launch() == TILEWISE_OK;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(accepted[i], kRounds) << print(problems[i]);
    EXPECT_TRUE(cases[i]->outputs() == want[i]) << print(problems[i]);
  }
}

TEST_F(Streams, ManyThreadsAndStreamsAtOnceGiveTheSameBits_C1) {
  std::vector<Stream> streams(kThreads);
  std::vector<std::unique_ptr<DeviceCase>> cases;
  std::vector<ProblemCase> problems;
  std::vector<Bits> want;
  for (int i = 0; i < kThreads; ++i) {
    problems.push_back(case_of(kLines[i % std::size(kLines)]));
    problems.back().seed = static_cast<uint64_t>(i);
    cases.push_back(std::make_unique<DeviceCase>(problems.back(), streams[i].get()));
    want.push_back(cases.back()->run());
  }
  expect_same_bits(cases, problems, want);
}

TEST_F(Streams, ThreadsShareAPlan_C1) {
  std::vector<Stream> streams(kThreads);
  for (const char* line : {kLines[0], kLines[2], kLines[9]}) {
    std::vector<std::unique_ptr<DeviceCase>> cases;
    std::vector<ProblemCase> problems;
    std::vector<Bits> want;
    const SharedPlan plan = make_plan(case_of(line).problem);
    for (int i = 0; i < kThreads; ++i) {
      problems.push_back(case_of(line));
      problems.back().seed = static_cast<uint64_t>(i);
      cases.push_back(std::make_unique<DeviceCase>(problems.back(), streams[i].get(), plan));
      want.push_back(cases.back()->run());
    }
    expect_same_bits(cases, problems, want);
  }
}

// A plan may go as soon as the call has returned, whatever the stream still has to do.
TEST_F(Streams, PlansMayGoBeforeTheirKernelsRun_B074) {
  const Stream stream;
  std::vector<std::unique_ptr<DeviceCase>> cases;
  std::vector<Bits> want;
  for (const char* line : kLines) {
    cases.push_back(std::make_unique<DeviceCase>(line, stream.get()));
    want.push_back(cases.back()->run());
    cases.back()->refill(case_of(line));
  }
  require(cudaLaunchHostFunc(stream.get(), sleep_a_while, nullptr));
  for (int i = 0; i < 400; ++i) {
    const DeviceCase& c = *cases[i % cases.size()];
    const SharedPlan plan = make_plan(case_of(kLines[i % cases.size()]).problem);
    ASSERT_EQ(c.launch(plan), TILEWISE_OK) << tilewise_last_error();
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_TRUE(cases[i]->outputs() == want[i]) << kLines[i];
  }
}

}  // namespace
}  // namespace tilewise::cuda::test
