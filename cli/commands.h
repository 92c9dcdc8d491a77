// The verbs of the command line. main.cc fills the options; each verb prints its results and
// returns an exit code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/exit_code.h"

namespace tilewise::cli {

// What every verb that plans a problem takes.
struct PlanChoice {
  int32_t threads = 0;         // 0: every core
  std::string kernel;          // forces one by name
  std::string device = "cpu";  // cpu or cuda:N

  int32_t cuda_index() const;  // N; -1 for the CPU
};

struct InfoOptions {
  bool json = false;
  bool kernels = false;  // the registry as a Markdown table
};
ExitCode info(const InfoOptions& options);

struct CheckOptions {
  std::vector<std::string> problems;  // text or files
  PlanChoice plan;
  std::optional<uint64_t> seed;  // instead of the lines' own
  bool json = false, quiet = false, verbose = false;
};
ExitCode check(const CheckOptions& options);

struct BenchOptions {
  std::vector<std::string> problems;
  PlanChoice plan{.threads = 1, .kernel = {}, .device = "cpu"};
  std::optional<uint64_t> seed;
  double seconds = 0.5;  // at least this long in each kernel
  bool json = false, quiet = false;
};
ExitCode bench(const BenchOptions& options);

struct ExplainOptions {
  std::vector<std::string> problem;  // one, perhaps as several words
  PlanChoice plan;
  bool json = false;
};
ExitCode explain(const ExplainOptions& options);

struct RunOptions {
  std::vector<std::string> arguments;  // files, then words of the problem line
  std::string output;                  // .safetensors file, or a directory for .npy inputs
  std::vector<std::string> prefixes;   // only these cases
  std::string dtype;                   // computes in this type; empty: the file's
  PlanChoice plan;
  bool check = false, json = false, quiet = false;
};
ExitCode run(const RunOptions& options);

// Refuses devices that are not here and kernels that do not exist, before any work. `on_cuda`: this
// verb computes on CUDA devices.
ExitCode check_choice(const PlanChoice& choice, bool on_cuda);

}  // namespace tilewise::cli
