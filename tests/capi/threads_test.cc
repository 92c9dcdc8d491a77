// One plan, many threads (C1); fork (C6).
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/capi/call.h"

namespace tilewise::test {
namespace {

std::vector<std::byte> outputs(const Call& call) {
  std::vector<std::byte> all;
  for (const Operand operand : call.operands()) {
    if (!call.is_output(operand) || operand == Operand::kWorkspace) continue;
    const auto* bytes = static_cast<const std::byte*>(call.block(operand));
    all.insert(all.end(), bytes, bytes + call.block_bytes(operand));
  }
  return all;
}

void randomize(Call& call, unsigned seed) {
  for (const Operand operand : {Operand::kQ, Operand::kK, Operand::kV, Operand::kDo}) {
    auto* values = static_cast<float*>(call.block(operand));
    for (size_t i = 0; i < call.block_bytes(operand) / sizeof(float); ++i) {
      seed = seed * 1664525u + 1013904223u;
      values[i] = static_cast<float>(seed >> 16) * 0x1p-15f - 1.0f;
    }
  }
}

TEST(Threads, ManyThreadsRunOnePlan_C1) {
  constexpr int kThreads = 32, kRounds = 20;
  for (const Kind& kind : all_kinds()) {
    SCOPED_TRACE(kind.name());
    Call shared(kind);
    ASSERT_EQ(shared.create(), TILEWISE_OK) << tilewise_last_error();
    std::vector<std::vector<std::byte>> expected(kThreads);
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < kThreads; ++i) {
      calls.push_back(std::make_unique<Call>(kind));
      ASSERT_EQ(calls[i]->create(), TILEWISE_OK);
      randomize(*calls[i], static_cast<unsigned>(i));
      ASSERT_EQ(calls[i]->run(), TILEWISE_OK);
      expected[i] = outputs(*calls[i]);
    }
    std::atomic<int> wrong{0}, failed{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        Call& mine = *calls[i];
        for (int round = 0; round < kRounds; ++round) {
          const tilewise_status status = kind.direction == TILEWISE_FORWARD
                                             ? tilewise_forward(shared.plan(), &mine.forward)
                                             : tilewise_backward(shared.plan(), &mine.backward);
          failed += status != TILEWISE_OK;
          wrong += outputs(mine) != expected[i];
        }
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(failed, 0);
    EXPECT_EQ(wrong, 0);
  }
}

TEST(Threads, ErrorsAreOfTheThread) {
  tilewise_problem problem = TILEWISE_PROBLEM_INIT;
  tilewise_plan* plan = nullptr;
  problem.window_left = -77;
  problem.batch = problem.num_heads = problem.num_heads_kv = problem.head_dim = problem.head_dim_v =
      1;
  ASSERT_NE(tilewise_plan_create(&problem, nullptr, &plan), TILEWISE_OK);
  const std::string mine = tilewise_last_error();
  std::thread([&] {
    EXPECT_STREQ(tilewise_last_error(), "");
    tilewise_problem other = problem;
    other.window_left = -88;
    EXPECT_NE(tilewise_plan_create(&other, nullptr, &plan), TILEWISE_OK);
    EXPECT_NE(std::string(tilewise_last_error()).find("-88"), std::string::npos);
  }).join();
  EXPECT_EQ(tilewise_last_error(), mine);
}

// Runs every kind on one thread in a child process.
bool child_works(int32_t threads) {
  const pid_t child = fork();
  if (child == 0) {
    for (const Kind& kind : all_kinds()) {
      Call call(kind);
      call.options.threads = threads;
      if (call.create() != TILEWISE_OK || call.run() != TILEWISE_OK || !call.outputs_written()) {
        _exit(1);
      }
    }
    _exit(0);
  }
  int state = 0;
  return waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 0;
}

TEST(Fork, ChildAndParentWork_C6) {
  EXPECT_TRUE(child_works(1));  // the library is loaded and asked
  for (const Kind& kind : all_kinds()) {
    Call call(kind);
    ASSERT_EQ(call.create(), TILEWISE_OK);
    ASSERT_EQ(call.run(), TILEWISE_OK);
  }
  EXPECT_TRUE(child_works(1));  // and in use
  Call call({TILEWISE_FORWARD});
  ASSERT_EQ(call.create(), TILEWISE_OK);
  EXPECT_EQ(call.run(), TILEWISE_OK);
}

}  // namespace
}  // namespace tilewise::test
