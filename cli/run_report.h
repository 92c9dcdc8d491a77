// What `run --check` prints.
#pragma once

#include <string>
#include <vector>

#include "cli/run_case.h"

namespace tilewise::cli {

class RunReport {
 public:
  explicit RunReport(const RunInput& input);
  std::string title() const;
  std::string row(const CaseResult& result) const;
  // Below the table: what the columns mean, which kernels ran, which scale.
  std::string legend(const std::vector<CaseResult>& results) const;
  // What failed and where; empty when nothing did.
  static std::string failures(const CaseResult& result);
  static std::string json(const CaseResult& result);

 private:
  const RunInput& input_;
  bool golden_ = false, backward_ = false;
};

// Commands that follow from this run.
std::string next_steps(const RunInput& input, const std::string& file);

}  // namespace tilewise::cli
