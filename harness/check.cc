#include "harness/check.h"

#include <algorithm>
#include <fstream>

#include "core/format.h"
#include "harness/accuracy_limits.h"
#include "harness/data.h"
#include "harness/oracle.h"
#include "harness/peak.h"

namespace tilewise::harness {
namespace {

std::string text_of(double x) {  // three digits are enough to read
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.3g", x);
  return buffer;
}

std::string line_of(const RuleResult& r) {
  std::string out = format("{} {} {}: {} of limit {}", r.ok() ? "ok  " : "FAIL", r.rule, r.tensor,
                           text_of(r.value), text_of(r.limit));
  if (!r.where.empty()) out += " at " + r.where;
  return out;
}

void fail(CheckReport& report, std::string text) {
  report.ok = false;
  report.text.insert(report.text.begin(), "FAIL " + std::move(text));
}

void compare(const Tensors& tensors, const CheckOptions& options, CheckReport& report) {
  const AttentionProblem& p = tensors.problem();
  const Oracle want = oracle(tensors);
  const bool lse = options.run.want_lse || p.backward();
  if (options.eager && size_of(p.dtype) == 2 && has_statistics(tensors.problem_case())) {
    const Eager other = eager(tensors);
    report.rules = check_accuracy(tensors, want, &other, lse);
  } else {
    report.rules = check_accuracy(tensors, want, nullptr, lse);
  }
  std::stable_sort(report.rules.begin(), report.rules.end(),
                   [](const RuleResult& a, const RuleResult& b) { return a.ok() < b.ok(); });
  for (const RuleResult& r : report.rules) {
    report.ok = report.ok && r.ok();
    report.text.push_back(line_of(r));
  }
}

}  // namespace

std::string CheckReport::summary() const {
  std::string out;
  for (const std::string& t : text) out += "  " + t + "\n";
  return out;
}

CheckReport check_tensors(Tensors& tensors, const CheckOptions& options) {
  const double start = wall_seconds();
  CheckReport report;
  report.ok = true;
  report.line = print(tensors.problem_case());
  report.outcome = run_case(tensors, options.run);
  if (report.outcome.ok() && !report.outcome.damage) compare(tensors, options, report);
  if (!report.outcome.ok()) {
    fail(report, format("{}: {}: {}", report.outcome.stage,
                        tilewise_status_string(report.outcome.status), report.outcome.error));
  }
  if (report.outcome.damage) fail(report, format("memory: {}", *report.outcome.damage));
  report.seconds = wall_seconds() - start;
  return report;
}

CheckReport check_case(const ProblemCase& c, const CheckOptions& options) {
  Tensors tensors(c, options.buffers);
  if (Status s = fill_inputs(tensors); !s.ok()) {
    CheckReport report;
    report.line = print(c);
    fail(report, s.message());
    return report;
  }
  return check_tensors(tensors, options);
}

Result<std::vector<ProblemCase>> parse_case_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return invalid_argument("cannot read {}", path);
  std::vector<ProblemCase> cases;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    const std::string text = line.substr(0, line.find('#'));
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    Result<ProblemCase> c = parse_case(text);
    if (!c) {
      return Status(c.status().code(), format("{}:{}: {}", path, number, c.status().message()));
    }
    cases.push_back(*std::move(c));
  }
  return cases;
}

}  // namespace tilewise::harness
