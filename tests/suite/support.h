// What the suite's tests share: which kernels compute a case here, running one, comparing two.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/format.h"
#include "core/problem.h"
#include "core/random.h"
#include "harness/buffers.h"
#include "harness/check.h"
#include "harness/run.h"
#include "tests/thinned.h"

namespace tilewise::suite {

using harness::Tensors;

// Whole number in the environment, or `otherwise`.
uint64_t from_environment(const char* variable, uint64_t otherwise);

// The parsed line; a test failure (and an empty case) when it does not parse.
ProblemCase case_of(std::string_view line);

// Every level this processor runs, lowest first.
std::vector<CpuIsa> levels_here();

// Sets TILEWISE_CPU_ISA for as long as it lives.
class IsaScope {
 public:
  explicit IsaScope(CpuIsa isa);
  ~IsaScope();
  IsaScope(const IsaScope&) = delete;
  IsaScope& operator=(const IsaScope&) = delete;

 private:
  std::optional<std::string> before_;
};

// Every kernel of the library that computes p on this machine, those of lower levels and the
// reference included.
std::vector<std::string> kernels_for(const AttentionProblem& p);
// The same without cpu.reference.
std::vector<std::string> tiled_kernels_for(const AttentionProblem& p);
// "forward" of "cpu.forward.avx2": what kind of kernel it is.
std::string kind_of(std::string_view kernel);

// check_case with a kernel by name ("" is the default choice); a test failure with the report's
// text when it fails.
void expect_accurate(const ProblemCase& c, const std::string& kernel = "", int threads = 0);

// Outputs of one run, packed without gaps.
struct Outputs {
  std::vector<std::byte> o, dq, dk, dv;
  std::vector<float> lse;
};
// Runs tensors that are filled; demands ok and undamaged.
Outputs run_as_is(Tensors& t, const harness::RunOptions& options = {});
// Fills the tensors by the case's family and runs. `edit` may change the inputs in between.
Outputs run_filled(const ProblemCase& c, const harness::RunOptions& options = {},
                   const std::function<void(Tensors&)>& edit = nullptr);
harness::RunOptions with_kernel(const std::string& kernel, int threads = 0);

// "" when equal bit for bit, else which output differs.
std::string difference_of(const Outputs& a, const Outputs& b);

// The values of packed bytes.
std::vector<double> values_of(const std::vector<std::byte>& packed, DType dtype);

// Relative L2 distance; 0 for two empty arrays.
double relative_l2(const std::vector<double>& got, const std::vector<double>& want);
double largest_difference(const std::vector<double>& got, const std::vector<double>& want);

// Uniform whole numbers for test cases.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed, 4242) {}
  int64_t below(int64_t limit) { return static_cast<int64_t>(random_.word(at_++)) % limit; }
  template <class T, size_t N>
  const T& of(const T (&items)[N]) {
    return items[below(static_cast<int64_t>(N))];
  }

 private:
  PhiloxStream random_;
  uint64_t at_ = 0;
};

}  // namespace tilewise::suite
