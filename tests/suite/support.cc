#include "support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/registry.h"
#include "cpu/cpu_device.h"
#include "cpu/entries.h"
#include "harness/data.h"

namespace tilewise::suite {

uint64_t from_environment(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}

ProblemCase case_of(std::string_view line) {
  Result<ProblemCase> c = parse_case(line);
  EXPECT_TRUE(c.ok()) << line << ": " << c.status().message();
  return c ? *c : ProblemCase{};
}

std::vector<CpuIsa> levels_here() {
  std::vector<CpuIsa> levels;
  for (int i = 0; i <= static_cast<int>(cpu::best_isa()); ++i) {
    levels.push_back(static_cast<CpuIsa>(i));
  }
  return levels;
}

IsaScope::IsaScope(CpuIsa isa) {
  if (const char* value = std::getenv("TILEWISE_CPU_ISA")) before_ = value;
  setenv("TILEWISE_CPU_ISA", name_of(isa), 1);
}
IsaScope::~IsaScope() {
  if (before_) {
    setenv("TILEWISE_CPU_ISA", before_->c_str(), 1);
  } else {
    unsetenv("TILEWISE_CPU_ISA");
  }
}

std::vector<std::string> kernels_for(const AttentionProblem& p) {
  std::vector<std::string> names;
  const Result<Device> device = cpu::cpu_device();
  EXPECT_TRUE(device.ok()) << device.status().message();
  if (!device) return names;
  for (const KernelEntry* entry : cpu::entries()) {
    if (entry->supports(p, *device).yes) names.emplace_back(entry->name);
  }
  return names;
}

std::vector<std::string> tiled_kernels_for(const AttentionProblem& p) {
  std::vector<std::string> names = kernels_for(p);
  std::erase(names, "cpu.reference");
  return names;
}

std::string kind_of(std::string_view kernel) {
  kernel.remove_prefix(std::min(kernel.size(), kernel.find('.') + 1));
  return std::string(kernel.substr(0, kernel.find('.')));
}

void expect_accurate(const ProblemCase& c, const std::string& kernel, int threads) {
  harness::CheckOptions options;
  options.run = with_kernel(kernel, threads);
  const harness::CheckReport report = harness::check_case(c, options);
  EXPECT_TRUE(report.ok) << "kernel \"" << kernel << "\": " << report.line << "\n"
                         << report.summary();
}

harness::RunOptions with_kernel(const std::string& kernel, int threads) {
  harness::RunOptions options;
  options.kernel = kernel;
  options.threads = threads;
  return options;
}

Outputs run_as_is(Tensors& t, const harness::RunOptions& options) {
  const AttentionProblem& p = t.problem();
  const std::string line = print(t.problem_case());
  const harness::RunOutcome outcome = harness::run_case(t, options);
  EXPECT_TRUE(outcome.ok()) << line << " [" << options.kernel << "]: " << outcome.stage << ": "
                            << outcome.error;
  Outputs out;
  if (!outcome.ok()) return out;
  const auto damage = t.damage(p.direction);
  EXPECT_FALSE(damage.has_value()) << line << " [" << outcome.kernel << "]: " << *damage;
  out.o = t.packed(TensorId::kO);
  out.lse = t.packed_lse();
  if (p.backward()) {
    out.dq = t.packed(TensorId::kDq);
    out.dk = t.packed(TensorId::kDk);
    out.dv = t.packed(TensorId::kDv);
  }
  return out;
}

Outputs run_filled(const ProblemCase& c, const harness::RunOptions& options,
                   const std::function<void(Tensors&)>& edit) {
  Tensors t(c);
  const Status filled = harness::fill_inputs(t);
  EXPECT_TRUE(filled.ok()) << filled.message();
  if (edit) edit(t);
  return run_as_is(t, options);
}

std::string difference_of(const Outputs& a, const Outputs& b) {
  const auto differ = [](const auto& x, const auto& y) {
    return x.size() != y.size() ||
           (!x.empty() && std::memcmp(x.data(), y.data(), x.size() * sizeof x[0]) != 0);
  };
  if (differ(a.o, b.o)) return "o differs";
  if (differ(a.lse, b.lse)) return "lse differs";
  if (differ(a.dq, b.dq)) return "dq differs";
  if (differ(a.dk, b.dk)) return "dk differs";
  if (differ(a.dv, b.dv)) return "dv differs";
  return "";
}

std::vector<double> values_of(const std::vector<std::byte>& packed, DType dtype) {
  const size_t size = static_cast<size_t>(size_of(dtype));
  std::vector<double> values(packed.size() / size);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = harness::load_element(dtype, packed.data() + i * size);
  }
  return values;
}

double relative_l2(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0.0, size = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return error == 0.0 ? 0.0 : std::sqrt(error / size);
}

double largest_difference(const std::vector<double>& got, const std::vector<double>& want) {
  double largest = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = std::fabs(got[i] - want[i]);
    if (!(d <= largest)) largest = d;
  }
  return largest;
}

}  // namespace tilewise::suite
