#include <cstdio>

#include "cli/commands.h"
#include "cli/problems.h"
#include "cli/progress.h"
#include "cli/run_case.h"
#include "cli/run_input.h"
#include "cli/run_output.h"
#include "cli/run_report.h"
#include "cli/terminal.h"
#include "cli/words.h"
#include "harness/problem_abi.h"

namespace tilewise::cli {
namespace {

struct Totals {
  std::vector<CaseResult> results;
  AttentionRow row;  // the most telling one so far
  size_t failed = 0;
};

// One case from its file to its results; an error ends the whole run.
Status run_one(const RunInput& input, const RunCase& c, const RunOptions& options,
               ResultWriter* writer, Totals& totals) {
  if (Status status = check_memory(c.problem_case, options.check ? 40 : 8); !status.ok())
    return status;
  harness::Tensors tensors(c.problem_case);
  if (Status status = load_inputs(input.source, c, tensors); !status.ok()) return status;
  CaseResult result;
  if (Status status = compute(c, options, tensors, result); !status.ok()) return status;
  if (writer != nullptr && c.written) {
    if (Status status = writer->append(c, tensors); !status.ok()) return status;
  }
  if (options.check) {
    if (c.written) {
      AttentionRow row = find_row(input.source.metadata, c, tensors);
      if (row.interest > totals.row.interest) totals.row = std::move(row);
    }
    if (Status status = check_result(input.source, options, tensors, result); !status.ok())
      return status;
    totals.failed += result.ok() ? 0 : 1;
  }
  totals.results.push_back(std::move(result));
  return {};
}

Status run_all(const RunInput& input, const RunOptions& options, ResultWriter* writer,
               Totals& totals) {
  double work = 0;
  const auto work_of = [](const RunCase& c) { return 1e8 + harness::flops_of(c.problem_case); };
  for (const RunCase& c : input.cases) work += work_of(c);
  Progress progress(options.quiet, static_cast<int>(input.cases.size()), work);
  const RunReport report(input);
  const bool table = options.check && !options.json;
  for (const RunCase& c : input.cases) {
    if (interrupted()) return {StatusCode::kInternal, "interrupted"};
    progress.begin_step(c.label, work_of(c));
    if (Status status = run_one(input, c, options, writer, totals); !status.ok()) return status;
    const CaseResult& result = totals.results.back();
    if (table && totals.results.size() == 1) progress.print(report.title());
    if (table) progress.print(report.row(result));
    if (options.check && options.json) progress.print(RunReport::json(result));
  }
  return {};
}

void print_check_summary(const RunInput& input, const RunArguments& arguments,
                         const Totals& totals) {
  std::printf("\n%s", RunReport(input).legend(totals.results).c_str());
  if (totals.row.interest > 0) std::printf("\n%s", row_in_words(totals.row).c_str());
  if (totals.failed == 0) {
    std::string files;
    for (const std::string& file : arguments.files) files += (files.empty() ? "" : " ") + file;
    std::printf("\n%s", next_steps(input, files).c_str());
  }
}

ExitCode finish(const RunInput& input, const RunArguments& arguments, const RunOptions& options,
                ResultWriter* writer, const Totals& totals) {
  if (options.check && !options.json) print_check_summary(input, arguments, totals);
  if (totals.failed > 0) {
    std::fflush(stdout);
    for (const CaseResult& result : totals.results)
      std::fputs(RunReport::failures(result).c_str(), stderr);
    return fail(kFailed,
                format("{} of {} cases failed the check{}", totals.failed, totals.results.size(),
                       writer == nullptr ? "" : "; nothing was written"));
  }
  if (writer == nullptr) return kOk;
  if (Status status = writer->commit(); !status.ok()) return fail(kFailed, status.message());
  if (!options.json)
    std::printf("%s%s\n", options.check ? "\nwrote " : "wrote ", writer->summary().c_str());
  return kOk;
}

}  // namespace

ExitCode run(const RunOptions& options) {
  if (options.output.empty() && !options.check) {
    return fail(kUsage, "run needs -o <where the results go>, or --check");
  }
  if (options.json && !options.check) return fail(kUsage, "--json goes with --check");
  if (const ExitCode code = check_choice(options.plan, /*on_cuda=*/false); code != kOk) return code;
  const Result<RunArguments> arguments = split_arguments(options.arguments);
  if (!arguments) return fail(kUsage, arguments.status().message());
  Result<TensorSource> source = open_source(arguments->files);
  if (!source) return fail(kFailed, source.status().message());
  Result<RunInput> input = find_cases(std::move(*source), *arguments, options);
  if (!input) return fail(kFailed, input.status().message());
  catch_interrupts();  // before there is a file to remove
  std::unique_ptr<ResultWriter> writer;
  if (!options.output.empty()) {
    Result<std::unique_ptr<ResultWriter>> created = create_writer(options.output, *input);
    if (!created) return fail(kFailed, created.status().message());
    writer = std::move(*created);
  }
  Totals totals;
  if (Status status = run_all(*input, options, writer.get(), totals); !status.ok()) {
    return fail(kFailed,
                format("{}{}", status.message(), writer == nullptr ? "" : "; nothing was written"));
  }
  return finish(*input, *arguments, options, writer.get(), totals);
}

}  // namespace tilewise::cli
