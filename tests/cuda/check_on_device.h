// What the tests of the CUDA kernels share.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "harness/check.h"
#include "tilewise/tilewise.h"

namespace tilewise {

inline bool no_device() {
  int32_t count = 0;
  return tilewise_device_count(TILEWISE_CUDA, &count) != TILEWISE_OK || count == 0;
}

// Tests of an element type, skipped on a machine without a device.
class EachTypeOnDevice : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (no_device()) GTEST_SKIP() << tilewise_backend_note(TILEWISE_CUDA);
  }
};

// A problem line on device 0, by the accuracy rules.
inline void check_on_device(const std::string& line, const std::string& kernel = "") {
  const Result<ProblemCase> c = parse_case(line);
  ASSERT_TRUE(c.ok()) << c.status().message();
  harness::CheckOptions options;
  options.run.cuda_device = 0;
  options.run.kernel = kernel;
  const harness::CheckReport report = harness::check_case(*c, options);
  EXPECT_TRUE(report.ok) << report.outcome.kernel << ": " << report.line << "\n"
                         << report.summary();
}

}  // namespace tilewise
