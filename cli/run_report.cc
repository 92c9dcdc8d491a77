#include "cli/run_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/table.h"
#include "cli/terminal.h"

namespace tilewise::cli {
namespace {

std::string sizes_text(const AttentionProblem& p) {
  const std::string lengths =
      p.varlen ? format("{} x {} in {}", p.total_q, p.total_k, p.batch)
               : format("{}{} x {}", p.batch == 1 ? "" : format("{} x ", p.batch), p.seqlen_q,
                        p.seqlen_k);
  const std::string heads = p.num_heads == p.num_heads_kv
                                ? to_text(p.num_heads)
                                : format("{}/{}", p.num_heads, p.num_heads_kv);
  return format("{}, h {}, d {}", lengths, heads, p.head_dim);
}

std::string golden_text(const std::optional<GoldenResult>& golden) {
  return golden ? significant(golden->error, 2) : "-";
}

size_t widest_label(const RunInput& input) {
  size_t width = 4;
  for (const RunCase& c : input.cases)
    width = std::max(width, std::min<size_t>(c.label.size(), 48));
  return width;
}

size_t widest_sizes(const RunInput& input) {
  size_t width = 5;
  for (const RunCase& c : input.cases) width = std::max(width, sizes_text(c.problem()).size());
  return width;
}

std::vector<Column> columns_of(const RunInput& input, bool golden, bool backward) {
  std::vector<Column> columns = {{"case", false, widest_label(input)},
                                 {"sizes", false, widest_sizes(input)},
                                 {"o error", true, 8},
                                 {"lse error", true, 9}};
  if (backward) columns.push_back({"gradients", true, 9});
  columns.push_back({"of limit", true, 8});
  if (golden) {
    columns.push_back({"golden o", true, 8});
    columns.push_back({"and lse", true, 8});
  }
  columns.push_back({"GFLOP/s", true, 7});
  columns.push_back({"of peak", true, 7});
  columns.push_back({"", false, 6});
  return columns;
}

}  // namespace

RunReport::RunReport(const RunInput& input) : input_(input) {
  for (const RunCase& c : input.cases) {
    golden_ = golden_ || c.golden_o != nullptr || c.golden_lse != nullptr;
    backward_ = backward_ || c.problem().backward();
  }
}

std::string RunReport::title() const { return title_text(columns_of(input_, golden_, backward_)); }

std::string RunReport::row(const CaseResult& r) const {
  std::vector<std::string> cells = {r.run_case->label, sizes_text(r.run_case->problem()),
                                    significant(r.o_error, 2), significant(r.lse_error, 2)};
  if (backward_)
    cells.push_back(r.run_case->problem().backward() ? significant(r.gradient_error, 2) : "-");
  const harness::RuleResult* worst = r.worst_rule();
  cells.push_back(worst == nullptr ? "-" : format("{} %", fixed(100 * worst->worst, 0)));
  if (golden_) {
    cells.push_back(golden_text(r.golden_o));
    cells.push_back(golden_text(r.golden_lse));
  }
  cells.push_back(r.bench ? fixed(r.bench->gflops, 1) : "-");
  cells.push_back(r.bench ? format("{} %", fixed(100 * r.bench->peak_fraction, 0)) : "-");
  cells.push_back(r.ok() ? coloured("ok", Colour::kGreen) : coloured("FAILED", Colour::kRed));
  return row_text(columns_of(input_, golden_, backward_), cells);
}

std::string RunReport::legend(const std::vector<CaseResult>& results) const {
  std::set<std::string> kernels, instructions;
  const harness::BenchResult* bench = nullptr;
  for (const CaseResult& r : results) {
    kernels.insert(r.outcome.kernel);
    if (!r.bench) continue;
    bench = &*r.bench;
    instructions.insert(r.bench->peak_instruction);
  }
  const auto join = [](const std::set<std::string>& items) {
    std::string text;
    for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
    return text;
  };
  std::string text =
      "Errors: the largest absolute difference from an fp64 reference computed here" +
      std::string(backward_ ? " (gradients: relative L2)" : "") +
      (golden_ ? ", and from the file's golden values" : "") +
      ".\n\"of limit\": the accuracy rule that came nearest to its limit (docs/accuracy.md).\n";
  if (bench != nullptr) {
    text +=
        format("\"of peak\": of a register-only loop of {} run in between; {} time, {} thread{}.\n",
               join(instructions), bench->threads == 1 ? "CPU" : "wall", bench->threads,
               bench->threads == 1 ? "" : "s");
    text += bench->device + "; ";
  }
  text += format("kernel {}; {}.\n", join(kernels), input_.scale_note);
  if (!input_.golden_note.empty()) text += "Note: " + input_.golden_note + ".\n";
  return text;
}

std::string RunReport::failures(const CaseResult& r) {
  std::string text;
  const auto add = [&](const std::string& what) {
    text += format("tilewise: case {}: {}\n", quote(r.run_case->label), what);
  };
  if (!r.outcome.ok()) add(r.outcome.error);
  for (const harness::RuleResult& rule : r.rules) {
    if (!rule.ok()) {
      add(format("rule {} of {}: {} times its limit, {}", rule.rule, rule.tensor,
                 significant(rule.worst), rule.where));
    }
  }
  for (const auto& golden : {r.golden_o, r.golden_lse}) {
    if (golden && !golden->ok) add(golden->why);
  }
  return text;
}

std::string RunReport::json(const CaseResult& r) {
  const AttentionProblem& p = r.run_case->problem();
  nlohmann::ordered_json json = {
      {"case", r.run_case->label},  {"problem", print(r.run_case->problem_case)},
      {"kernel", r.outcome.kernel}, {"ok", r.ok()},
      {"o_error", r.o_error},       {"lse_error", r.lse_error}};
  if (p.backward()) json["gradient_error"] = r.gradient_error;
  if (const harness::RuleResult* worst = r.worst_rule(); worst != nullptr) {
    json["worst_rule"] = {
        {"rule", worst->rule}, {"tensor", worst->tensor}, {"of_limit", worst->worst}};
  }
  if (r.golden_o) json["golden_o_error"] = r.golden_o->error;
  if (r.golden_lse) json["golden_lse_error"] = r.golden_lse->error;
  if (r.bench) json["bench"] = nlohmann::ordered_json::parse(harness::to_json(*r.bench));
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string next_steps(const RunInput& input, const std::string& file) {
  const auto largest = std::max_element(
      input.cases.begin(), input.cases.end(),
      [](const RunCase& a, const RunCase& b) { return a.problem().flops() < b.problem().flops(); });
  const std::string problem = print(largest->problem());
  return "What to try next:\n"
         "  tilewise run " +
         file +
         " causal -o out.safetensors    other options, results in a file\n"
         "  tilewise run " +
         file +
         " --check --dtype bf16         another type\n"
         "  tilewise bench \"" +
         problem +
         "\"    the same sizes, timed longer\n"
         "  tilewise explain \"" +
         problem + "\"    which kernel, and why\n";
}

}  // namespace tilewise::cli
