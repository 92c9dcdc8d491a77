// check_case: fill, run, look for damage, compare with the oracle.
#pragma once

#include <string>
#include <vector>

#include "core/problem.h"
#include "harness/accuracy.h"
#include "harness/buffers.h"
#include "harness/run.h"

namespace tilewise::harness {

struct CheckOptions {
  RunOptions run;
  BufferOptions buffers;
  bool eager = true;  // rules A4 and A5 of 16-bit problems
};

struct CheckReport {
  bool ok = false;
  std::string line;               // the case as text: repeats it
  std::vector<std::string> text;  // one line per rule, a failing one first
  std::vector<RuleResult> rules;  // empty when the run did not get that far
  RunOutcome outcome;
  double seconds = 0;  // all of it

  std::string summary() const;  // the lines of text below the case's line, ready to print
};

CheckReport check_case(const ProblemCase& c, const CheckOptions& options = {});
// For tensors that are filled already (real data, poisoned padding, ...).
CheckReport check_tensors(Tensors& tensors, const CheckOptions& options = {});

// The cases of a problem file: one a line, '#' starts a comment. Errors quote line number and text.
Result<std::vector<ProblemCase>> parse_case_file(const std::string& path);

}  // namespace tilewise::harness
