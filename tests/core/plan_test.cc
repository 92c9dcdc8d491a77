// Registry and plan: the first kernel that says yes, and the reasons of those that do not.
#include "core/plan.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "core/registry.h"
#include "cpu/entries.h"

namespace tilewise {
namespace {

const AttentionProblem kProblem = *parse_problem("fp32 b2 sq64 sk64 h4 d64");

constexpr CpuIsa kIsas[] = {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16};

Device fake_cpu(CpuIsa isa, int cores = 4) {
  Device d;
  d.isa = isa;
  d.num_cores = cores;
  return d;
}

Answer needs_avx512(const AttentionProblem&, const Device& d) {
  if (d.isa >= CpuIsa::kAvx512) return yes();
  return no("needs avx512, device has {}", name_of(d.isa));
}
Answer small_heads(const AttentionProblem& p, const Device&) {
  if (p.head_dim > 128) return no("head_dim {} > 128", p.head_dim);
  return yes();
}
Answer never(const AttentionProblem&, const Device&) { return no("for the sake of the test"); }
Status plain_shape(Plan& plan, const PlanOptions&) {
  plan.workspace_bytes = 64 * plan.shape.threads;
  return {};
}
Status too_large(Plan&, const PlanOptions&) {
  return {StatusCode::kOverflow, "workspace too large"};
}

const KernelEntry kWide = {"fake.wide", "", needs_avx512, plain_shape, nullptr, nullptr};
const KernelEntry kNarrow = {"fake.narrow", "", small_heads, plain_shape, nullptr, nullptr};
const KernelEntry kNever = {"fake.never", "", never, plain_shape, nullptr, nullptr};
const KernelEntry kHuge = {"fake.huge", "", small_heads, too_large, nullptr, nullptr};

class Plans : public testing::Test {
 protected:
  void SetUp() override { unsetenv("TILEWISE_KERNEL"); }
  void TearDown() override { unsetenv("TILEWISE_KERNEL"); }
  Registry registry_{{&kNever, &kWide, &kNarrow}};
};

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_F(Plans, FirstYesWins) {
  const Result<Plan> wide = make_plan(kProblem, fake_cpu(CpuIsa::kAvx512), {}, registry_);
  ASSERT_TRUE(wide.ok());
  EXPECT_EQ(wide->entry, &kWide);
  const Result<Plan> narrow = make_plan(kProblem, fake_cpu(CpuIsa::kAvx2), {}, registry_);
  ASSERT_TRUE(narrow.ok());
  EXPECT_EQ(narrow->entry, &kNarrow);
  EXPECT_TRUE(narrow->problem == kProblem);
  EXPECT_EQ(narrow->device, fake_cpu(CpuIsa::kAvx2));
}

TEST_F(Plans, NoKernelListsEveryCandidateWithItsReason_B121) {
  AttentionProblem p = *parse_problem("fp32 b1 sq4 h1 d200");
  const Result<Plan> plan = make_plan(p, fake_cpu(CpuIsa::kAvx2), {}, registry_);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kUnsupported);
  const std::string& text = plan.status().message();
  EXPECT_TRUE(contains(text, print(p))) << text;
  EXPECT_TRUE(contains(text, "fake.never: for the sake of the test")) << text;
  EXPECT_TRUE(contains(text, "fake.wide: needs avx512, device has avx2")) << text;
  EXPECT_TRUE(contains(text, "fake.narrow: head_dim 200 > 128")) << text;
}

TEST_F(Plans, CandidatesKeepTheOrder) {
  const auto all = registry_.candidates(kProblem, fake_cpu(CpuIsa::kAvx512));
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].entry, &kNever);
  EXPECT_FALSE(all[0].answer.yes);
  EXPECT_EQ(all[0].answer.reason, "for the sake of the test");
  EXPECT_TRUE(all[1].answer.yes);
  EXPECT_TRUE(all[2].answer.yes);
  EXPECT_EQ(registry_.find("fake.narrow"), &kNarrow);
  EXPECT_EQ(registry_.find("fake"), nullptr);
}

TEST_F(Plans, AForcedKernelIsUsedOrRefused) {
  PlanOptions options;
  options.kernel = "fake.narrow";
  const Result<Plan> forced = make_plan(kProblem, fake_cpu(CpuIsa::kAvx512), options, registry_);
  ASSERT_TRUE(forced.ok());
  EXPECT_EQ(forced->entry, &kNarrow);
  options.kernel = "fake.never";
  const Result<Plan> refused = make_plan(kProblem, fake_cpu(CpuIsa::kAvx512), options, registry_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(contains(refused.status().message(), "for the sake of the test"));
  options.kernel = "fake.typo";
  const Result<Plan> unknown = make_plan(kProblem, fake_cpu(CpuIsa::kAvx512), options, registry_);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  for (const char* part : {"fake.typo", "fake.never", "fake.wide", "fake.narrow"}) {
    EXPECT_TRUE(contains(unknown.status().message(), part)) << unknown.status().message();
  }
}

TEST_F(Plans, TheEnvironmentForcesAKernelUnlessTheOptionsDo) {
  setenv("TILEWISE_KERNEL", "fake.narrow", 1);
  const Result<Plan> by_variable = make_plan(kProblem, fake_cpu(CpuIsa::kAvx512), {}, registry_);
  ASSERT_TRUE(by_variable.ok());
  EXPECT_EQ(by_variable->entry, &kNarrow);
  PlanOptions options;
  options.kernel = "fake.wide";
  EXPECT_EQ(make_plan(kProblem, fake_cpu(CpuIsa::kAvx512), options, registry_)->entry, &kWide);
  setenv("TILEWISE_KERNEL", "fake.typo", 1);
  const Result<Plan> unknown = make_plan(kProblem, fake_cpu(CpuIsa::kAvx512), {}, registry_);
  ASSERT_FALSE(unknown.ok());
  EXPECT_TRUE(contains(unknown.status().message(), "TILEWISE_KERNEL"));
  setenv("TILEWISE_KERNEL", "", 1);
  EXPECT_EQ(make_plan(kProblem, fake_cpu(CpuIsa::kAvx512), {}, registry_)->entry, &kWide);
}

// Decode multiplied the head stride of one head by the size of an element.
TEST_F(Plans, StridesAlongOneIndexAreTheUsualOnes) {
  AttentionProblem p = *parse_problem("fp32 b1 sq7 sk5 h4 hk1 d64");
  p.stride(TensorId::kK) = {INT64_MAX, 100, INT64_MAX};
  p.stride(TensorId::kQ).head = 70;
  const Result<Plan> plan = make_plan(p, fake_cpu(CpuIsa::kAvx2), {}, registry_);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->problem.stride(TensorId::kK), (Strides{5 * 64, 100, 64}));
  EXPECT_EQ(plan->problem.stride(TensorId::kQ).head, 70);
}

TEST_F(Plans, ThreadsAreRecorded) {
  PlanOptions options;
  EXPECT_EQ(make_plan(kProblem, fake_cpu(CpuIsa::kAvx2, 6), options, registry_)->shape.threads, 6);
  options.threads = 3;
  EXPECT_EQ(make_plan(kProblem, fake_cpu(CpuIsa::kAvx2, 6), options, registry_)->shape.threads, 3);
  EXPECT_EQ(make_plan(kProblem, fake_cpu(CpuIsa::kAvx2), options, registry_)->workspace_bytes, 192);
  options.threads = -1;
  const Result<Plan> bad = make_plan(kProblem, fake_cpu(CpuIsa::kAvx2), options, registry_);
  ASSERT_FALSE(bad.ok());
  EXPECT_TRUE(contains(bad.status().message(), "threads is -1"));
}

TEST_F(Plans, AnInvalidProblemIsRefusedBeforeAnyKernelIsAsked) {
  AttentionProblem p = kProblem;
  p.head_dim = 0;
  EXPECT_EQ(make_plan(p, fake_cpu(CpuIsa::kAvx2), {}, registry_).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(Plans, AKernelMayRefuseSizes) {
  const Registry registry({&kHuge});
  const Result<Plan> plan = make_plan(kProblem, fake_cpu(CpuIsa::kAvx2), {}, registry);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kOverflow);
}

TEST_F(Plans, AnEmptyRegistryIsUnsupported) {
  const Registry none({});
  EXPECT_EQ(make_plan(kProblem, fake_cpu(CpuIsa::kAvx2), {}, none).status().code(),
            StatusCode::kUnsupported);
}

// ---- The real list, on machines of every level.

// The level in a kernel's name, e.g. "cpu.forward.avx512"; nothing for cpu.reference.
int level_in(std::string_view name) {
  for (int i = 3; i >= 0; --i) {
    const std::string suffix = std::string(".") + name_of(kIsas[i]);
    if (name.ends_with(suffix) || contains(std::string(name), suffix + ".")) return i;
  }
  return -1;
}

TEST_F(Plans, EveryLevelGetsAKernelThatItCanRun_B124) {
  const Registry registry(cpu::entries());
  for (const CpuIsa isa : kIsas) {
    for (const char* dtype : {"fp16", "bf16", "fp32", "fp64"}) {
      for (const char* rest :
           {" b2 sq64 h4 d64", " b1 sq1 sk300 h4 hk2 d80", " b1 sq70 h1 d512 dv1 causal backward",
            " b1 sq3 h1 d1 dv512 window:5,-1 topleft softcap:3 alibi",
            " varlen:q=3,0:k=5,2 h2 d64 backward", " b1 sq9 h3 hk1 d600 backward"}) {
        const AttentionProblem p = *parse_problem(std::string(dtype) + rest);
        const Result<Plan> plan = make_plan(p, fake_cpu(isa), {}, registry);
        ASSERT_TRUE(plan.ok()) << print(p) << ": " << plan.status().message();
        EXPECT_LE(level_in(plan->entry->name), static_cast<int>(isa)) << plan->entry->name;
        EXPECT_NE(p.backward() ? plan->entry->backward == nullptr : plan->entry->forward == nullptr,
                  true)
            << plan->entry->name << " for " << print(p);
      }
    }
  }
}

TEST_F(Plans, TheReferenceIsLastAndComputesEverything) {
  const Registry registry(cpu::entries());
  ASSERT_FALSE(registry.entries().empty());
  const KernelEntry* last = registry.entries().back();
  EXPECT_EQ(last->name, "cpu.reference");
  EXPECT_NE(last->forward, nullptr);
  EXPECT_NE(last->backward, nullptr);
  for (const char* line : {"fp64 b1 sq3 h1 d4096", "fp16 b1 sq3 h1 d4 backward alibi softcap:1"}) {
    EXPECT_TRUE(last->supports(*parse_problem(line), fake_cpu(CpuIsa::kScalar)).yes) << line;
  }
}

TEST_F(Plans, NoCpuKernelTakesTensorsOfAnotherDevice_I7_B121) {
  Device cuda;
  cuda.kind = DeviceKind::kCuda;
  const Registry registry(cpu::entries());
  const Result<Plan> plan = make_plan(kProblem, cuda, {}, registry);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kUnsupported);
  for (const KernelEntry* entry : registry.entries()) {
    EXPECT_TRUE(contains(plan.status().message(), entry->name)) << plan.status().message();
  }
}

TEST_F(Plans, NamesAndSummariesAreThereAndNamesAreUnique) {
  const Registry registry(cpu::entries());
  for (const KernelEntry* entry : registry.entries()) {
    EXPECT_FALSE(entry->name.empty());
    EXPECT_FALSE(entry->summary.empty()) << entry->name;
    EXPECT_EQ(registry.find(entry->name), entry);
    EXPECT_TRUE(entry->forward != nullptr || entry->backward != nullptr) << entry->name;
  }
}

// Another total moves no kernel and no split, so results of a sequence stay what they were.
TEST_F(Plans, KernelAndSplitsIgnoreTotals_B118) {
  const Registry registry(cpu::entries());
  for (const CpuIsa isa : kIsas) {
    const auto make = [&](const char* line) {
      return *make_plan(*parse_problem(line), fake_cpu(isa), {}, registry);
    };
    const Plan a = make("bf16 varlen:b=4:total=100,900:max=80,700 h8 hk2 d64 causal");
    const Plan b = make("bf16 varlen:b=4:total=131,1207:max=80,700 h8 hk2 d64 causal");
    EXPECT_EQ(a.entry, b.entry);
    EXPECT_EQ(a.shape.num_splits, b.shape.num_splits);
  }
}

}  // namespace
}  // namespace tilewise
