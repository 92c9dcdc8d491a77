#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/commands.h"
#include "cli/problems.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "harness/problem_abi.h"
#include "tilewise/tilewise.h"

namespace tilewise::cli {
namespace {

struct Line {
  std::string kernel, verdict, reason;
};

std::vector<Line> split(const std::string& text) {
  std::vector<Line> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    const size_t first = line.find('\t'), second = line.find('\t', first + 1);
    lines.push_back({line.substr(0, first), line.substr(first + 1, second - first - 1),
                     line.substr(second + 1)});
    at = end == std::string::npos ? text.size() : end + 1;
  }
  return lines;
}

// A row for each kernel, and one for those that many others share their reason with: all of another
// device's.
std::vector<std::vector<std::string>> rows_of(const std::vector<Line>& lines) {
  constexpr int kMany = 10;
  std::vector<std::vector<std::string>> rows;
  std::set<std::string> said;
  for (const Line& line : lines) {
    std::string kernel = line.kernel;
    if (line.verdict == "no") {
      const auto same = std::count_if(lines.begin(), lines.end(), [&](const Line& other) {
        return other.verdict == "no" && other.reason == line.reason;
      });
      if (same > kMany && !said.insert(line.reason).second) continue;
      if (same > kMany) kernel += format(" and {} more", same - 1);
    }
    rows.push_back({line.verdict == "chosen" ? "*" : "", kernel, line.verdict, line.reason});
  }
  return rows;
}

}  // namespace

ExitCode explain(const ExplainOptions& options) {
  if (const ExitCode code = check_choice(options.plan, /*on_cuda=*/true); code != kOk) return code;
  const Result<std::vector<ProblemCase>> cases = read_cases(options.problem);
  if (!cases) return fail(kUsage, cases.status().message());
  if (cases->size() != 1) {
    return fail(kUsage, format("explain takes one problem, not {}", cases->size()));
  }
  const AttentionProblem& problem = cases->front().problem;
  const tilewise_problem abi = harness::to_abi(problem);
  tilewise_plan_options plan = TILEWISE_PLAN_OPTIONS_INIT;
  plan.threads = options.plan.threads;
  if (options.plan.cuda_index() >= 0) {
    plan.device_kind = TILEWISE_CUDA;
    plan.device_index = options.plan.cuda_index();
  }
  if (!options.plan.kernel.empty()) plan.kernel = options.plan.kernel.c_str();
  size_t needed = 0;
  tilewise_status status = tilewise_explain(&abi, &plan, nullptr, 0, &needed);
  std::string text(needed, '\0');
  if (status == TILEWISE_OK)
    status = tilewise_explain(&abi, &plan, text.data(), text.size(), nullptr);
  if (status != TILEWISE_OK) return fail(kFailed, tilewise_last_error());
  text.resize(needed - 1);

  const std::vector<Line> lines = split(text);
  bool any = false;
  for (const Line& line : lines) any = any || line.verdict == "chosen";
  if (options.json) {
    nlohmann::ordered_json json = {{"problem", print(problem)},
                                   {"candidates", nlohmann::json::array()}};
    for (const Line& line : lines) {
      json["candidates"].push_back(
          {{"kernel", line.kernel}, {"verdict", line.verdict}, {"reason", line.reason}});
    }
    std::printf("%s\n", json.dump().c_str());
    return any ? kOk : kFailed;
  }
  std::printf("%s\n\n%s", print(problem).c_str(),
              table_text({{""}, {"kernel"}, {"verdict"}, {"reason, or how the work is divided"}},
                         rows_of(lines))
                  .c_str());
  if (!any) return fail(kFailed, "no kernel was chosen");
  return kOk;
}

}  // namespace tilewise::cli
