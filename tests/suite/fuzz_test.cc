// F1, F2, F4, F5: random problems against the oracle, between guards.
//
//   TILEWISE_FUZZ_CASES   how many (2,000 when unset)
//   TILEWISE_FUZZ_SEED    the first seed (1 when unset)
//
// A failing case is made smaller and printed as one command that repeats it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "core/registry.h"
#include "cpu/cpu_device.h"
#include "cpu/entries.h"
#include "harness/data.h"
#include "harness/fuzz.h"
#include "harness/problem_abi.h"
#include "support.h"

namespace tilewise::suite {
namespace {

// How a case is run: the level stands in TILEWISE_CPU_ISA.
struct Setting {
  CpuIsa isa;
  std::string kernel;  // "": the default choice
  int threads;
};

Setting setting_of(uint64_t seed, const AttentionProblem& p) {
  const std::vector<CpuIsa> levels = levels_here();
  Setting s;
  s.isa = levels[seed / 3 % levels.size()];
  s.threads = seed % 5 == 0 ? 3 : 1;
  if (seed % 3 == 0) {
    const IsaScope scope(s.isa);
    const std::vector<std::string> kernels = kernels_for(p);
    s.kernel = kernels[seed / 7 % kernels.size()];
  }
  return s;
}

harness::CheckReport check(const ProblemCase& c, const Setting& s) {
  const IsaScope scope(s.isa);
  harness::CheckOptions options;
  options.run = with_kernel(s.kernel, s.threads);
  return harness::check_case(c, options);
}

std::string command_of(const ProblemCase& c, const Setting& s) {
  std::string command = format("TILEWISE_CPU_ISA={} ", name_of(s.isa));
  if (!s.kernel.empty()) command += format("TILEWISE_KERNEL={} ", s.kernel);
  return command + format("tilewise check \"{}\" --threads {}", print(c), s.threads);
}

// The smallest case that fails in the same setting, and its report.
std::string minimised(const ProblemCase& c, const Setting& s) {
  const ProblemCase small = harness::minimise(c, [&](const ProblemCase& smaller) {
    const IsaScope scope(s.isa);
    if (!s.kernel.empty()) {  // the kernel must still be one that computes it
      const std::vector<std::string> kernels = kernels_for(smaller.problem);
      if (std::find(kernels.begin(), kernels.end(), s.kernel) == kernels.end()) return false;
    }
    return !check(smaller, s).ok;
  });
  return command_of(small, s) + "\n" + check(small, s).summary();
}

TEST(Fuzz, RandomProblemsMatchTheOracle_F1_F2_F5) {
  const uint64_t cases = from_environment("TILEWISE_FUZZ_CASES", 2000);
  const uint64_t first = from_environment("TILEWISE_FUZZ_SEED", 1);
  int failures = 0;
  for (uint64_t seed = first; seed < first + cases && failures < 5; ++seed) {
    const ProblemCase c = harness::random_case(seed);
    const Setting setting = setting_of(seed, c.problem);
    const harness::CheckReport report = check(c, setting);
    if (report.ok) continue;
    ++failures;
    ADD_FAILURE() << "seed " << seed << ": " << print(c) << "\n"
                  << report.summary() << "repeat with: " << minimised(c, setting);
  }
  std::printf("fuzz: %llu cases from seed %llu, %d failures\n",
              static_cast<unsigned long long>(cases), static_cast<unsigned long long>(first),
              failures);
}

// Every case can be written down: its line gives it back.
TEST(Fuzz, EveryCaseIsOneLine_F5) {
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    const ProblemCase c = harness::random_case(seed);
    const Result<ProblemCase> back = parse_case(print(c));
    ASSERT_TRUE(back.ok()) << print(c) << ": " << back.status().message();
    ASSERT_TRUE(*back == c) << print(c);
  }
}

// What explain, the registry and the plan say about a problem is one answer.
TEST(Fuzz, SupportQueryEqualsThePlansStatus_F4_B111) {
  const uint64_t cases = from_environment("TILEWISE_FUZZ_CASES", 2000);
  const Registry registry(cpu::entries());
  for (uint64_t seed = 0; seed < cases; ++seed) {
    ProblemCase c = harness::random_case(seed);
    if (seed % 2 == 0) c.problem.head_dim = 1 + static_cast<int64_t>(seed % 1100);  // beyond d512
    set_layout(c.problem, Layout::kBshd);
    const IsaScope scope(setting_of(seed, c.problem).isa);
    const Device device = *cpu::cpu_device();
    const std::vector<Candidate> candidates = registry.candidates(c.problem, device);
    const KernelEntry* first = nullptr;
    for (const Candidate& candidate : candidates) {
      if (candidate.answer.yes && first == nullptr) first = candidate.entry;
      ASSERT_NE(candidate.answer.yes, !candidate.answer.reason.empty()) << candidate.entry->name;
    }
    const tilewise_problem problem = harness::to_abi(c.problem);
    tilewise_plan* plan = nullptr;
    const tilewise_status status = tilewise_plan_create(&problem, nullptr, &plan);
    ASSERT_EQ(status == TILEWISE_OK, first != nullptr) << print(c) << ": " << tilewise_last_error();
    if (first == nullptr) continue;
    tilewise_plan_info info = TILEWISE_PLAN_INFO_INIT;
    ASSERT_EQ(tilewise_plan_get_info(plan, &info), TILEWISE_OK);
    EXPECT_EQ(std::string_view(info.kernel), first->name) << print(c);
    tilewise_plan_destroy(plan);

    char text[16384];
    ASSERT_EQ(tilewise_explain(&problem, nullptr, text, sizeof text, nullptr), TILEWISE_OK);
    EXPECT_NE(std::string(text).find(format("{}\tchosen", first->name)), std::string::npos) << text;
    for (const Candidate& candidate : candidates) {
      // Naming each kernel gives the same answer as its line.
      tilewise_plan_options options = TILEWISE_PLAN_OPTIONS_INIT;
      const std::string name(candidate.entry->name);
      options.kernel = name.c_str();
      plan = nullptr;
      ASSERT_EQ(tilewise_plan_create(&problem, &options, &plan) == TILEWISE_OK,
                candidate.answer.yes)
          << name << " for " << print(c) << ": " << tilewise_last_error();
      tilewise_plan_destroy(plan);
    }
  }
}

}  // namespace
}  // namespace tilewise::suite
