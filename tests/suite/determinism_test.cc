// D1, D2, D4: the same bits on reruns, for any number of threads, and across instruction sets where
// that is promised. TILEWISE_RERUNS sets the number of reruns (30 when unset).
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "harness/data.h"
#include "support.h"

namespace tilewise::suite {
namespace {

const char* const kLines[] = {
    "fp32 b2 sq130 h4 hk2 d64 causal",
    "fp32 b1 sq2 sk3000 h8 hk2 d64",
    "bf16 b2 sq100 sk257 h4 hk1 d128 window:90,5",
    "bf16 b1 sq1 sk5000 h8 hk1 d128",
    "fp16 b1 sq129 sk65 h3 hk1 d80 softcap:10 alibi",
    "fp32 varlen:q=70,1,0,33:k=90,700,4,33 h4 hk2 d32 causal",
    "fp32 b2 sq130 h4 hk2 d64 causal backward",
    "fp32 b1 sq300 sk1200 h1 d32 backward",
    "bf16 b2 sq100 sk257 h4 hk1 d128 window:90,5 backward",
    "fp16 b1 sq129 sk65 h3 hk1 d80 softcap:10 alibi backward deterministic",
    "bf16 varlen:q=70,1,0,33:k=90,300,4,33 h4 hk2 d32 causal backward",
    "fp64 b1 sq20 sk30 h2 d8 causal backward",
};

TEST(Determinism, RerunsAreBitEqual_D1_D2_B061_B062) {
  const uint64_t reruns = from_environment("TILEWISE_RERUNS", Thinned::kSanitized ? 3 : 30);
  for (const char* line : kLines) {
    const ProblemCase c = case_of(line);
    for (const std::string& kernel : kernels_for(c.problem)) {
      Tensors t(c);
      ASSERT_TRUE(harness::fill_inputs(t).ok());
      const Outputs first = run_as_is(t, with_kernel(kernel, 2));
      const uint64_t times = kernel == "cpu.reference" ? 2 : reruns;
      for (uint64_t i = 0; i < times; ++i) {
        ASSERT_EQ(difference_of(run_as_is(t, with_kernel(kernel, 2)), first), "")
            << line << " " << kernel << " rerun " << i;
      }
    }
  }
}

// A caller's pool: one std::thread for each task, started in reverse order.
void run_on_threads(void*, int64_t count, void (*task)(void*, int64_t), void* context) {
  std::vector<std::thread> threads;
  for (int64_t i = count - 1; i >= 0; --i) threads.emplace_back(task, context, i);
  for (std::thread& thread : threads) thread.join();
}
void run_in_turn(void*, int64_t count, void (*task)(void*, int64_t), void* context) {
  for (int64_t i = 0; i < count; ++i) task(context, i);
}

TEST(Determinism, AnyNumberOfThreadsGivesTheSameBits_D4_ThreadCounts) {
  Thinned thinned(3);
  for (const char* line : kLines) {
    const ProblemCase c = case_of(line);
    for (const std::string& kernel : kernels_for(c.problem)) {
      if (thinned.skips()) continue;
      const Outputs one = run_filled(c, with_kernel(kernel, 1));
      for (const int threads : {2, 3, 7, 64}) {
        ASSERT_EQ(difference_of(run_filled(c, with_kernel(kernel, threads)), one), "")
            << line << " " << kernel << " threads " << threads;
      }
      for (const auto parallel_for : {run_on_threads, run_in_turn}) {
        const tilewise_thread_pool pool = {parallel_for, nullptr};
        harness::RunOptions options = with_kernel(kernel, 5);
        options.pool = &pool;
        ASSERT_EQ(difference_of(run_filled(c, options), one), "") << line << " " << kernel;
      }
    }
  }
}

// "cpu.forward.avx2" -> "cpu.forward"; kernels of one such name differ in the instruction set only.
std::string without_level(const std::string& kernel) { return kernel.substr(0, kernel.rfind('.')); }

// The forward's fp32 arithmetic is the same operations in the same order at every level. avx512bf16
// multiplies in bf16 and is a class of its own; decode sums along the lanes of a vector, so that
// its bits are those of a lane count.
TEST(Determinism, LevelsGiveTheSameBits_D4) {
  const char* const lines[] = {
      "fp32 b1 sq70 sk70 h2 d64",
      "fp32 b1 sq200 h1 d64 causal",
      "fp32 b1 sq129 sk300 h2 hk1 d128",
      "fp32 b1 sq31 sk500 h1 d40 dv24 window:100,7",
      "fp32 b1 sq1 sk700 h1 d64",
      "fp32 b1 sq3 sk1500 h4 hk2 d128",
      "fp32 b1 sq50 sk90 h3 d80 softcap:5 alibi",
      "fp32 varlen:q=3,70,0:k=90,70,5 h2 d32 causal",
      "fp32 b1 sq64 sk2048 h1 d64 data:large",
      "fp32 b1 sq64 sk300 h1 d64 data:needle",
      "fp32 b1 sq64 sk300 h1 d64 data:low",
      "fp32 b1 sq40 sk130 h1 d32 data:huge",
      "fp16 b1 sq70 sk200 h2 d64",
      "fp16 b1 sq130 h1 d128 causal",
      "bf16 b1 sq70 sk200 h2 d64",
      "bf16 b1 sq130 h1 d128 causal",
  };
  const IsaScope every_level(levels_here().back());
  int compared = 0;
  for (const char* line : lines) {
    const ProblemCase c = case_of(line);
    std::map<std::string, std::pair<std::string, Outputs>> first;
    for (const std::string& kernel : tiled_kernels_for(c.problem)) {
      if (kernel.ends_with(".avx512bf16") || kind_of(kernel) != "forward") continue;
      const std::string kind = without_level(kernel);
      const Outputs out = run_filled(c, with_kernel(kernel));
      const auto [it, is_new] = first.emplace(kind, std::make_pair(kernel, out));
      if (is_new) continue;
      ++compared;
      EXPECT_EQ(difference_of(out, it->second.second), "")
          << line << ": " << kernel << " and " << it->second.first;
    }
  }
  if (levels_here().size() > 2) {
    EXPECT_GE(compared, 16);
  }
}

// One plan, run by many threads at the same time, each with tensors of its own.
TEST(Concurrency, OnePlanOnManyThreads_C1_Concurrent) {
  for (const char* line : {kLines[0], kLines[3], kLines[6], kLines[10]}) {
    const ProblemCase c = case_of(line);
    const Outputs want = run_filled(c, with_kernel("", 1));
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&, i] {
        Tensors t(c);
        if (!harness::fill_inputs(t).ok()) ++wrong;
        for (int round = 0; round < 3; ++round) {
          harness::RunOptions options = with_kernel("", 1 + i % 3);
          if (!harness::run_case(t, options).ok() || t.damage(c.problem.direction)) ++wrong;
          wrong += t.packed(TensorId::kO) != want.o;
          wrong += c.problem.backward() && t.packed(TensorId::kDq) != want.dq;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0) << line;
  }
}

TEST(Concurrency, ThirtyTwoThreadsOnRandomProblems_C1_Concurrent) {
  constexpr int kThreads = 32, kProblems = 12;
  std::vector<ProblemCase> cases;
  std::vector<Outputs> want;
  for (int i = 0; i < kProblems; ++i) {
    cases.push_back(case_of(kLines[static_cast<size_t>(i) % std::size(kLines)]));
    cases.back().seed = static_cast<uint64_t>(i);
    want.push_back(run_filled(cases.back(), with_kernel("", 1)));
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 3; ++i) {
        const size_t at = static_cast<size_t>(thread * 5 + i * 7) % kProblems;
        Tensors t(cases[at]);
        if (!harness::fill_inputs(t).ok()) ++wrong;
        if (!harness::run_case(t, with_kernel("", 1 + thread % 2)).ok()) ++wrong;
        wrong += t.packed(TensorId::kO) != want[at].o;
        wrong += t.packed_lse() != want[at].lse;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// A call from inside the caller's own parallel region runs on the calling thread.
TEST(Concurrency, NestedCallsFromAThreadPool_Concurrent) {
  const ProblemCase c = case_of(kLines[0]);
  const Outputs want = run_filled(c, with_kernel("", 1));
  std::atomic<int> wrong{0};
#pragma omp parallel for num_threads(4)
  for (int i = 0; i < 8; ++i) {
    Tensors t(c);
    if (!harness::fill_inputs(t).ok() || !harness::run_case(t, with_kernel("", 4)).ok()) ++wrong;
    wrong += t.packed(TensorId::kO) != want.o;
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tilewise::suite
