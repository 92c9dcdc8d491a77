// Every kind of bad input gets a status and a message with the field and the value, writes nothing,
// and leaves the next call working (B007, B053, B093, B096, B101, B107, B125).
#include <gtest/gtest.h>

#include <set>

#include "tests/capi/bad_cases.h"

namespace tilewise::test {
namespace {

std::string missing_words(const BadCase& bad, const std::string& message) {
  std::string missing;
  for (const std::string& word : bad.words) {
    if (message.find(word) == std::string::npos) missing += " \"" + word + "\"";
  }
  return missing;
}

void expect_good_call(const Kind& kind) {
  Call good(kind);
  ASSERT_EQ(good.create(), TILEWISE_OK) << tilewise_last_error();
  ASSERT_EQ(good.run(), TILEWISE_OK) << tilewise_last_error();
  EXPECT_TRUE(good.outputs_written());
}

TEST(BadInput, GoodCallsAreGood) {
  for (const Kind& kind : all_kinds()) {
    SCOPED_TRACE(kind.name());
    expect_good_call(kind);
  }
}

TEST(BadInput, NoPlanIsMade) {
  for (const BadCase& bad : bad_problems()) {
    SCOPED_TRACE(bad.name);
    Call call(bad.kind);
    bad.edit(call);
    auto* plan = reinterpret_cast<tilewise_plan*>(&call);  // must become null
    const tilewise_status status = tilewise_plan_create(&call.problem, &call.options, &plan);
    EXPECT_EQ(status, bad.status) << tilewise_status_string(status) << ": "
                                  << tilewise_last_error();
    EXPECT_EQ(plan, nullptr);
    const std::string message = tilewise_last_error();
    EXPECT_EQ(missing_words(bad, message), "") << "not in: " << message;
    expect_good_call(bad.kind);
  }
}

TEST(BadInput, NothingRunsOrIsWritten) {
  for (const BadCase& bad : bad_calls()) {
    SCOPED_TRACE(bad.name);
    Call call(bad.kind);
    ASSERT_EQ(call.create(), TILEWISE_OK) << tilewise_last_error();
    bad.edit(call);
    call.snapshot();
    const tilewise_status status = call.run();
    EXPECT_EQ(status, bad.status) << tilewise_status_string(status) << ": "
                                  << tilewise_last_error();
    EXPECT_TRUE(call.untouched());
    const std::string message = tilewise_last_error();
    EXPECT_EQ(missing_words(bad, message), "") << "not in: " << message;
    call.forward.struct_size = sizeof call.forward;
    call.reset();
    EXPECT_EQ(call.run(), TILEWISE_OK) << tilewise_last_error();
    EXPECT_TRUE(call.outputs_written());
  }
}

TEST(BadInput, CasesAreDistinctAndMany) {
  std::set<std::string> names;
  size_t count = 0;
  for (const auto& cases : {bad_problems(), bad_calls()}) {
    for (const BadCase& bad : cases) {
      EXPECT_TRUE(names.insert(bad.name).second) << bad.name;
      EXPECT_FALSE(bad.words.empty()) << bad.name;
      ++count;
    }
  }
  EXPECT_GE(count, 400u);
  RecordProperty("negative_cases", static_cast<int>(count));
}

TEST(BadInput, PlanForTheOtherDirection) {
  Call forward({TILEWISE_FORWARD}), backward({TILEWISE_BACKWARD});
  ASSERT_EQ(forward.create(), TILEWISE_OK);
  ASSERT_EQ(backward.create(), TILEWISE_OK);
  EXPECT_EQ(tilewise_forward(backward.plan(), &forward.forward), TILEWISE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tilewise_last_error()).find("direction"), std::string::npos);
  EXPECT_EQ(tilewise_backward(forward.plan(), &backward.backward), TILEWISE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tilewise_last_error()).find("direction"), std::string::npos);
}

TEST(BadInput, NullStructs) {
  Call call({TILEWISE_FORWARD});
  ASSERT_EQ(call.create(), TILEWISE_OK);
  const auto expect_null = [](tilewise_status status, const char* name) {
    EXPECT_EQ(status, TILEWISE_INVALID_ARGUMENT);
    EXPECT_EQ(tilewise_last_error(), std::string(name) + " is null");
  };
  tilewise_plan* plan = nullptr;
  expect_null(tilewise_plan_create(nullptr, nullptr, &plan), "problem");
  expect_null(tilewise_plan_create(&call.problem, nullptr, nullptr), "plan");
  expect_null(tilewise_forward(nullptr, &call.forward), "plan");
  expect_null(tilewise_forward(call.plan(), nullptr), "params");
  expect_null(tilewise_backward(nullptr, &call.backward), "plan");
  expect_null(tilewise_plan_get_info(nullptr, nullptr), "plan");
  expect_null(tilewise_plan_get_info(call.plan(), nullptr), "info");
  expect_null(tilewise_problem_parse(nullptr, &call.problem), "text");
  expect_null(tilewise_problem_parse("fp32 b1 sq1 h1 d1", nullptr), "problem");
  expect_null(tilewise_problem_print(nullptr, nullptr, 0, nullptr), "problem");
  expect_null(tilewise_explain(nullptr, nullptr, nullptr, 0, nullptr), "problem");
  expect_null(tilewise_device_count(TILEWISE_CPU, nullptr), "count");
  expect_null(tilewise_device_get_info(TILEWISE_CPU, 0, nullptr), "info");
  tilewise_plan_destroy(nullptr);
}

TEST(BadInput, EnvironmentThatIsWrong) {
  Call call({TILEWISE_FORWARD});
  for (const char* isa : {"avx1024", "AVX2", " scalar"}) {
    setenv("TILEWISE_CPU_ISA", isa, 1);
    EXPECT_EQ(call.create(), TILEWISE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(tilewise_last_error()).find(isa), std::string::npos);
    unsetenv("TILEWISE_CPU_ISA");
    setenv("TILEWISE_KERNEL", isa, 1);
    EXPECT_EQ(call.create(), TILEWISE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(tilewise_last_error()).find(isa), std::string::npos);
    unsetenv("TILEWISE_KERNEL");
    EXPECT_EQ(call.create(), TILEWISE_OK);
  }
}

}  // namespace
}  // namespace tilewise::test
