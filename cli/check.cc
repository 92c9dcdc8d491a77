#include "harness/check.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/problems.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "harness/problem_abi.h"

namespace tilewise::cli {
namespace {

const harness::RuleResult* worst_of(const std::vector<harness::RuleResult>& rules) {
  const auto worst = std::max_element(rules.begin(), rules.end(), [](const auto& a, const auto& b) {
    return a.ok() != b.ok() ? a.ok() : a.worst < b.worst;
  });
  return worst == rules.end() ? nullptr : &*worst;
}

std::string rule_text(const harness::CheckReport& report) {
  const harness::RuleResult* worst = worst_of(report.rules);
  if (worst == nullptr) return "-";
  return format("{} {} {}", worst->rule, worst->tensor, percent(worst->worst));
}

void print_json(Progress& progress, const ProblemCase& c, const harness::CheckReport& report) {
  nlohmann::ordered_json json = {{"problem", print(c)},
                                 {"ok", report.ok},
                                 {"kernel", report.outcome.kernel},
                                 {"threads", report.outcome.threads},
                                 {"seconds", report.seconds},
                                 {"rules", nlohmann::json::array()}};
  for (const harness::RuleResult& rule : report.rules) {
    json["rules"].push_back({{"rule", rule.rule},
                             {"tensor", rule.tensor},
                             {"worst", rule.worst},
                             {"value", rule.value},
                             {"limit", rule.limit},
                             {"where", rule.where}});
  }
  if (!report.ok) json["why"] = report.text;
  progress.print(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

ExitCode check(const CheckOptions& options) {
  if (const ExitCode code = check_choice(options.plan, /*on_cuda=*/true); code != kOk) return code;
  Result<std::vector<ProblemCase>> cases = read_cases(options.problems);
  if (!cases) return fail(kUsage, cases.status().message());
  double work = 0;
  size_t width = 7;
  for (ProblemCase& c : *cases) {
    if (options.seed) c.seed = *options.seed;
    work += 1 + harness::flops_of(c);
    width = std::max(width, std::min<size_t>(print(c).size(), 72));
  }
  harness::CheckOptions check;
  check.run.threads = options.plan.threads;
  check.run.kernel = options.plan.kernel;
  check.run.cuda_device = options.plan.cuda_index();

  catch_interrupts();
  const std::vector<Column> columns = {{"", false, 6},
                                       {"problem", false, width},
                                       {"worst rule, of its limit", false, 24},
                                       {"s", true, 6},
                                       {"kernel", false, 0}};
  size_t done = 0, failed = 0;
  {
    Progress progress(options.quiet, static_cast<int>(cases->size()), work);
    if (!options.json) progress.print(title_text(columns));
    for (const ProblemCase& c : *cases) {
      if (interrupted()) break;
      progress.begin_step(print(c), 1 + harness::flops_of(c));
      harness::CheckReport report;
      if (Status status = check_memory(c, 24); !status.ok()) {
        report.text = {status.message()};
      } else {
        report = harness::check_case(c, check);
      }
      ++done;
      failed += report.ok ? 0 : 1;
      if (options.json) {
        print_json(progress, c, report);
        continue;
      }
      const std::string verdict =
          report.ok ? coloured("ok    ", Colour::kGreen) : coloured("FAILED", Colour::kRed);
      progress.print(row_text(columns, {verdict, print(c), rule_text(report),
                                        fixed(report.seconds, 2), report.outcome.kernel}));
      if (report.ok && !options.verbose) continue;
      for (const std::string& line : report.text) progress.print("        " + line);
    }
  }
  if (!options.json) {
    std::printf("\n%zu of %zu problems checked, %zu failed\n", done, cases->size(), failed);
  }
  return failed != 0 || done != cases->size() ? kFailed : kOk;
}

}  // namespace tilewise::cli
