#include "harness/bench.h"

#include <algorithm>
#include <cstdio>

#include "cli/commands.h"
#include "cli/problems.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "harness/problem_abi.h"

namespace tilewise::cli {
namespace {

std::vector<Column> columns_for(const std::vector<ProblemCase>& cases) {
  size_t width = 7;
  for (const ProblemCase& c : cases) width = std::max(width, std::min<size_t>(print(c).size(), 72));
  std::vector<Column> columns = {{"problem", false, width},
                                 {"ms", true, 9},
                                 {"GFLOP/s", true, 8},
                                 {"of peak", true, 7},
                                 {"quiet", true, 7}};
  if (std::any_of(cases.begin(), cases.end(),
                  [](const ProblemCase& c) { return harness::is_decode_shaped(c.problem); })) {
    columns.push_back({"GB/s", true, 6});
  }
  columns.push_back({"peak of", false, 10});
  columns.push_back({"kernel", false, 0});
  return columns;
}

std::string result_row(const std::vector<Column>& columns, const harness::BenchResult& r) {
  std::vector<std::string> cells = {r.problem, significant(r.ms, 4), fixed(r.gflops, 1),
                                    percent(r.peak_fraction), percent(r.peak_fraction_quiet)};
  if (columns.size() == 8) {
    cells.push_back(r.gbytes_per_s > 0 ? fixed(r.gbytes_per_s, 1) : "-");
  }
  cells.push_back(r.peak_instruction);
  cells.push_back(r.kernel);
  return row_text(columns, cells);
}

}  // namespace

ExitCode bench(const BenchOptions& options) {
  if (const ExitCode code = check_choice(options.plan, /*on_cuda=*/false); code != kOk) return code;
  Result<std::vector<ProblemCase>> cases = read_cases(options.problems);
  if (!cases) return fail(kUsage, cases.status().message());
  const double steps = static_cast<double>(cases->size());
  for (ProblemCase& c : *cases) {
    if (options.seed) c.seed = *options.seed;
  }
  harness::BenchOptions bench;
  bench.threads = options.plan.threads;
  bench.kernel = options.plan.kernel;
  bench.min_seconds = options.seconds;

  catch_interrupts();
  const std::vector<Column> columns = columns_for(*cases);
  size_t done = 0, refused = 0;
  std::string device;
  int32_t threads = 0;
  {
    Progress progress(options.quiet, static_cast<int>(cases->size()), steps);
    if (!options.json) progress.print(title_text(columns));
    for (const ProblemCase& c : *cases) {
      if (interrupted()) break;
      progress.begin_step(print(c), 1);
      Status status = check_memory(c, 0);
      if (status.ok()) {
        const Result<harness::BenchResult> result = harness::bench_case(c, bench);
        status = result.status();
        if (result.ok()) {
          progress.print(options.json ? harness::to_json(*result) : result_row(columns, *result));
          device = result->device;
          threads = result->threads;
        }
      }
      ++done;
      if (status.ok()) continue;
      ++refused;
      fail(kFailed, format("{}: {}", print(c), status.message()));
    }
  }
  if (!options.json && done > refused) {
    std::printf(
        "\n%s, %d thread%s; %s time, medians; \"quiet\" leaves out the machine's slow moments\n",
        device.c_str(), threads, threads == 1 ? "" : "s", threads == 1 ? "CPU" : "wall");
  }
  if (done != cases->size()) {
    std::fprintf(stderr, "tilewise: interrupted after %zu of %zu problems\n", done, cases->size());
  }
  return refused != 0 || done != cases->size() ? kFailed : kOk;
}

}  // namespace tilewise::cli
