// The command line: arguments in, one verb called. The only file that includes CLI11.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <new>

#include "cli/commands.h"
#include "cli/io/element.h"
#include "cli/problems.h"
#include "cli/terminal.h"
#include "core/format.h"
#include "tilewise/tilewise.h"

namespace tilewise::cli {
namespace {

const std::vector<std::string> kVerbs = {"info", "check", "bench", "explain", "run"};

constexpr const char* kDescription =
    "Exact attention, forward and backward, tile by tile.\n\n"
    "A problem is one line of text: dtype (fp16 bf16 fp32 fp64), sizes b<n> sq<n> sk<n> h<n> hk<n> "
    "d<n> dv<n>,\n"
    "then options: causal, window:L,R, topleft, scale:x, softcap:x, alibi, layout:bshd|bhsd|qkv, "
    "backward, …\n"
    "e.g. \"bf16 b2 sq4096 h32 hk8 d128 causal\"";
constexpr const char* kFooter =
    "Exit codes: 0 ok; 1 a check failed or the run was refused; 2 bad command line or problem "
    "text.\n"
    "tilewise <verb> --help has examples.";

void add_plan_choice(CLI::App* verb, PlanChoice& plan) {
  verb->add_option("--threads", plan.threads, "Most threads to use; 0: every core")
      ->check(CLI::Range(0, 4096))
      ->default_str(std::to_string(plan.threads));
  verb->add_option("--kernel", plan.kernel, "Force one kernel (tilewise info lists them)");
  verb->add_option("--device", plan.device, "cpu or cuda:N")->default_str("cpu");
}

CLI::App* add_verb(CLI::App& app, const char* name, const char* description, const char* examples) {
  CLI::App* verb = app.add_subcommand(name, description);
  verb->footer(std::string("Examples:\n") + examples);
  return verb;
}

void add_info(CLI::App& app, InfoOptions& o) {
  CLI::App* verb = add_verb(app, "info", "The library, this machine, and why something is off",
                            "  tilewise info\n"
                            "  tilewise info --json\n"
                            "  tilewise info --kernels      every kernel with what it computes");
  verb->add_flag("--json", o.json, "One JSON object");
  verb->add_flag("--kernels", o.kernels, "The kernels as a Markdown table");
}

void add_check(CLI::App& app, CheckOptions& o) {
  CLI::App* verb =
      add_verb(app, "check", "Runs problems and compares with an fp64 reference",
               "  tilewise check \"bf16 b2 sq300 h8 hk2 d128 causal backward\"\n"
               "  tilewise check tests/problems/causal_edges.txt --threads 2\n"
               "  tilewise check \"fp32 varlen:q=3,0,7:k=5,2,7 h2 d64\" --kernel cpu.reference");
  verb->add_option("problem", o.problems, "Problem text, or files of one problem a line (-: stdin)")
      ->required();
  add_plan_choice(verb, o.plan);
  verb->add_option("--seed", o.seed, "Seed of the random data")->check(CLI::NonNegativeNumber);
  verb->add_flag("--verbose,-v", o.verbose, "Every accuracy rule of every problem");
  verb->add_flag("--json", o.json, "One JSON object a line");
  verb->add_flag("--quiet,-q", o.quiet, "No progress display");
}

void add_bench(CLI::App& app, BenchOptions& o) {
  CLI::App* verb = add_verb(
      app, "bench", "Times problems beside this machine's peak, measured in the same run",
      "  tilewise bench \"fp32 b1 sq2048 h8 d64 causal\" --threads 1\n"
      "  tilewise bench cases.txt --json > results.jsonl\n"
      "With --threads 1 times are thread CPU time, otherwise wall time. Ctrl-C ends after the\n"
      "present problem; the lines so far stay.");
  verb->add_option("problem", o.problems, "Problem text, or files of one problem a line (-: stdin)")
      ->required();
  add_plan_choice(verb, o.plan);
  verb->add_option("--seed", o.seed, "Seed of the random data")->check(CLI::NonNegativeNumber);
  verb->add_option("--seconds", o.seconds, "Time each kernel at least this long")
      ->check(CLI::Range(0.0, 3600.0))
      ->default_str("0.5");
  verb->add_flag("--json", o.json, "One JSON object a line");
  verb->add_flag("--quiet,-q", o.quiet, "No progress display");
}

void add_explain(CLI::App& app, ExplainOptions& o) {
  CLI::App* verb =
      add_verb(app, "explain", "Every kernel with the reason why it was or was not chosen",
               "  tilewise explain \"bf16 b2 sq4096 h32 hk8 d128 causal\"\n"
               "  TILEWISE_CPU_ISA=avx2 tilewise explain \"fp32 b1 sq1 sk4096 h8 d64\"");
  verb->add_option("problem", o.problem, "Problem text")->required();
  add_plan_choice(verb, o.plan);
  verb->add_flag("--json", o.json, "One JSON object");
}

void add_run(CLI::App& app, RunOptions& o) {
  CLI::App* verb = add_verb(
      app, "run", "Attention over tensors from files",
      "  tilewise run in.safetensors causal -o out.safetensors\n"
      "  tilewise run in.safetensors window:128,0 scale:0.1 --dtype bf16 -o out.safetensors\n"
      "  tilewise run examples/data/minilm-attention.safetensors --check\n"
      "  tilewise run q.npy k.npy v.npy -o results\n"
      "Tensors: each prefix with <p>q <p>k <p>v is a case, (batch, seqlen, heads, dim); with\n"
      "<p>cu_seqlens_q and <p>cu_seqlens_k (total, heads, dim). <p>do adds the backward pass,\n"
      "<p>alibi_slopes serves the word alibi. Written under the same prefix: o, lse, and dq, dk, "
      "dv.\n"
      "<p>o, <p>lse, <p>o_causal, <p>lse_causal in the input are golden values for --check.\n"
      "NumPy: q, k, v and perhaps do, in this order; -o names a directory.");
  verb->add_option("input", o.arguments,
                   "in.safetensors, or q.npy k.npy v.npy [do.npy]; then words of a problem line")
      ->required();
  verb->add_option("--output,-o", o.output,
                   "Where the results go; an existing file is replaced once all is done");
  verb->add_option("--prefix", o.prefixes, "Only the case of this prefix (may be repeated)")
      ->expected(1)
      ->take_all();
  verb->add_option("--dtype", o.dtype,
                   "Compute in fp16, bf16, fp32 or fp64 instead of the file's type")
      ->check(CLI::IsMember({"fp16", "bf16", "fp32", "fp64"}));
  add_plan_choice(verb, o.plan);
  verb->add_flag("--check", o.check,
                 "Compare with an fp64 reference and the golden values, and time");
  verb->add_flag("--json", o.json, "With --check: one JSON object a line instead of the table");
  verb->add_flag("--quiet,-q", o.quiet, "No progress display");
}

// A missing or unknown verb deserves better than "argument not expected". Empty: nothing is wrong.
std::string verb_complaint(int argc, char** argv) {
  constexpr const char* kKnown =
      "the verbs are info, check, bench, explain and run (tilewise --help)";
  if (argc < 2) return format("no verb; {}", kKnown);
  const std::string word = argv[1];
  if (word == "-h" || word == "--help" || word == "--version") return {};
  if (word.starts_with('-')) return format("unknown option {}; {}", quote(word), kKnown);
  if (std::find(kVerbs.begin(), kVerbs.end(), word) != kVerbs.end()) return {};
  const std::string meant = nearest(word, kVerbs);
  return format("unknown verb {}{}; {}", quote(word),
                meant.empty() ? "" : format(", did you mean {}?", meant), kKnown);
}

std::string verb_of(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? "" : " " + chosen.front()->get_name();
}

int dispatch(int argc, char** argv) {
  CLI::App app(kDescription, "tilewise");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", format("tilewise {}.{}.{}", TILEWISE_VERSION_MAJOR,
                                           TILEWISE_VERSION_MINOR, TILEWISE_VERSION_PATCH));
  InfoOptions info_options;
  CheckOptions check_options;
  BenchOptions bench_options;
  ExplainOptions explain_options;
  RunOptions run_options;
  add_info(app, info_options);
  add_check(app, check_options);
  add_bench(app, bench_options);
  add_explain(app, explain_options);
  add_run(app, run_options);

  const std::string complaint = verb_complaint(argc, argv);
  if (!complaint.empty()) return fail(kUsage, complaint);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);  // --help, --version
  } catch (const CLI::ParseError& error) {
    const std::string verb = verb_of(app);
    return fail(kUsage, std::string(error.what()) + " (tilewise" + verb + " --help)");
  }
  if (app.got_subcommand("info")) return info(info_options);
  if (app.got_subcommand("check")) return check(check_options);
  if (app.got_subcommand("bench")) return bench(bench_options);
  if (app.got_subcommand("explain")) return explain(explain_options);
  return run(run_options);
}

}  // namespace
}  // namespace tilewise::cli

int main(int argc, char** argv) {
  using namespace tilewise::cli;  // NOLINT(google-build-using-namespace)
  int code = kFailed;
  try {
    code = dispatch(argc, argv);
  } catch (const std::bad_alloc&) {
    return fail(kFailed, "out of memory");
  } catch (const std::exception& error) {
    return fail(kFailed, error.what());
  }
  // A full disk or a closed pipe shows only now.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return fail(kFailed, "stdout cannot be written");
  }
  if (interrupted()) die_of_interrupt();
  return code;
}
