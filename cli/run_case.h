// One case of `run`: computed, and with --check compared and timed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/run_input.h"
#include "harness/accuracy.h"
#include "harness/bench.h"
#include "harness/run.h"

namespace tilewise::cli {

struct GoldenResult {
  double error = 0;  // largest absolute difference
  bool ok = true;
  std::string why;  // when not ok
};

struct CaseResult {
  const RunCase* run_case = nullptr;
  harness::RunOutcome outcome;
  // With --check:
  std::vector<harness::RuleResult> rules;
  double o_error = 0, lse_error = 0;  // largest absolute differences from the fp64 reference
  double gradient_error = 0;          // largest relative L2 of dq, dk, dv
  std::optional<GoldenResult> golden_o, golden_lse;
  std::optional<harness::BenchResult> bench;

  bool ok() const;
  const harness::RuleResult* worst_rule() const;  // null without rules
};

Status compute(const RunCase& c, const RunOptions& options, harness::Tensors& tensors,
               CaseResult& result);
// After compute(): fills what --check asks for.
Status check_result(const TensorSource& source, const RunOptions& options,
                    harness::Tensors& tensors, CaseResult& result);

}  // namespace tilewise::cli
