// Memory of the process: run calls allocate nothing (C9), a failed allocation is a status (C7), and
// nothing grows with calls, plans or threads (C8, B138, B141).
#include <gtest/gtest.h>
#include <malloc.h>

#include <functional>
#include <thread>

#include "tests/capi/allocation.h"
#include "tests/capi/call.h"

namespace tilewise::test {
namespace {

bool openmp() {
  return std::string(tilewise_backend_note(TILEWISE_CPU)).find("OpenMP") != std::string::npos;
}

TEST(Resources, RunCallsDoNotAllocate) {
  for (const int32_t dtype : {TILEWISE_FP16, TILEWISE_BF16, TILEWISE_FP32, TILEWISE_FP64}) {
    for (Kind kind : all_kinds()) {
      kind.dtype = dtype;
      for (const int32_t threads : {1, 2}) {
        if (threads > 1 && !openmp()) continue;  // std::thread allocates for each thread it starts
        SCOPED_TRACE(kind.name() + " threads " + std::to_string(threads));
        Call call(kind);
        call.options.threads = threads;
        ASSERT_EQ(call.create(), TILEWISE_OK) << tilewise_last_error();
        ASSERT_EQ(call.run(), TILEWISE_OK) << tilewise_last_error();  // OpenMP starts its threads
        const int64_t before = allocations();
        const tilewise_status first = call.run(), second = call.run();
        EXPECT_EQ(allocations(), before);
        EXPECT_EQ(first, TILEWISE_OK);
        EXPECT_EQ(second, TILEWISE_OK);
      }
    }
  }
}

// Fails each allocation of `body` in turn; returns how many there were.
int64_t fail_each_allocation(const std::function<tilewise_status()>& body) {
  for (int64_t nth = 0; nth < 10000; ++nth) {
    const int64_t live = live_objects();
    tilewise_status status;
    bool failed;
    {
      const FailAllocation failure(nth);
      status = body();
      failed = failure.happened();
    }
    if (!failed) return nth;
    EXPECT_EQ(status, TILEWISE_OUT_OF_MEMORY) << "allocation " << nth;
    EXPECT_STREQ(tilewise_last_error(), "out of host memory");
    EXPECT_EQ(live_objects(), live) << "allocation " << nth << " leaked";
  }
  return -1;
}

TEST(Resources, FailedAllocationsAreAStatus) {
  for (const Kind& kind : all_kinds()) {
    SCOPED_TRACE(kind.name());
    Call call(kind);
    ASSERT_EQ(call.create(), TILEWISE_OK);
    call.options.kernel = "cpu.reference";
    const int64_t points = fail_each_allocation([&] {
      tilewise_plan* plan = nullptr;
      const tilewise_status status = tilewise_plan_create(&call.problem, &call.options, &plan);
      EXPECT_EQ(plan != nullptr, status == TILEWISE_OK);
      tilewise_plan_destroy(plan);
      return status;
    });
    EXPECT_GE(points, 1);
    char text[4096];
    EXPECT_GE(fail_each_allocation([&] {
                return tilewise_explain(&call.problem, &call.options, text, sizeof text, nullptr);
              }),
              1);
    EXPECT_GE(fail_each_allocation([&] {
                return tilewise_problem_print(&call.problem, text, sizeof text, nullptr);
              }),
              1);
    EXPECT_GE(fail_each_allocation([&] { return tilewise_problem_parse(text, &call.problem); }), 1);
    EXPECT_EQ(call.create(), TILEWISE_OK) << tilewise_last_error();
    EXPECT_EQ(call.run(), TILEWISE_OK) << tilewise_last_error();
  }
}

// In a process that has made no call yet: what the first one sets up is set up by the next when the
// first failed. (The text buffers above have room for the longest line.)
TEST(ResourcesDeathTest, FailedAllocationsOfTheFirstCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int64_t nth : {0, 1, 2, 3, 5, 8}) {
    EXPECT_EXIT(
        {
          Call call({TILEWISE_FORWARD});
          tilewise_status status;
          {
            const FailAllocation failure(nth);
            tilewise_plan* plan = nullptr;
            status = tilewise_plan_create(&call.problem, &call.options, &plan);
            if (failure.happened() != (status == TILEWISE_OUT_OF_MEMORY)) std::exit(1);
            tilewise_plan_destroy(plan);
          }
          std::exit(call.create() == TILEWISE_OK && call.run() == TILEWISE_OK ? 0 : 2);
        },
        testing::ExitedWithCode(0), "")
        << "allocation " << nth;
  }
}

void run_all_kinds() {
  for (const Kind& kind : all_kinds()) {
    Call call(kind);
    ASSERT_EQ(call.create(), TILEWISE_OK) << tilewise_last_error();
    ASSERT_EQ(call.run(), TILEWISE_OK) << tilewise_last_error();
  }
}

constexpr int64_t kFlat = 1 << 20;

TEST(Resources, TenThousandCallsLeaveNoMemoryBehind_B138) {
  int64_t after_100 = 0, live_after_100 = 0;
  for (int i = 0; i < 10000 / 8; ++i) {
    if (i == 13) {
      after_100 = resident_bytes();
      live_after_100 = live_objects();
    }
    run_all_kinds();
  }
  EXPECT_LE(resident_bytes() - after_100, kFlat);
  EXPECT_EQ(live_objects(), live_after_100);
}

TEST(Resources, ThreadsThatComeAndGoLeaveNoMemoryBehind_B141) {
  const auto round = [] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 64; ++i) {
      threads.emplace_back([] {
        run_all_kinds();
        tilewise_plan* plan = nullptr;
        EXPECT_NE(tilewise_plan_create(nullptr, nullptr, &plan), TILEWISE_OK);
      });
    }
    for (std::thread& t : threads) t.join();
  };
  // So that the blocks of Call go back to the system and not into the arenas of 64 threads.
  mallopt(M_MMAP_THRESHOLD, 1 << 16);
  round();
  round();
  const int64_t resident = resident_bytes(), live = live_objects();
  for (int i = 0; i < 5; ++i) round();
  EXPECT_EQ(live_objects(), live);
  EXPECT_LE(resident_bytes() - resident, kFlat);
}

}  // namespace
}  // namespace tilewise::test
