// The tensors that `run` finds in its input files, and the problems they make.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/io/safetensors.h"
#include "core/problem.h"
#include "harness/buffers.h"

namespace tilewise::cli {

// Named tensors of one safetensors file, or of a few .npy files as q, k, v, do.
struct TensorSource {
  std::string name;  // for messages: the path
  std::vector<TensorEntry> tensors;
  Metadata metadata;
  std::function<Result<Bytes>(const TensorEntry&)> read;
  std::function<bool(const std::string& path)> is_input;  // an output must not replace one

  const TensorEntry* find(const std::string& tensor) const;
};

struct RunCase {
  std::string prefix;  // "short.layer0."
  std::string label;   // for tables: the prefix without its last separator
  ProblemCase problem_case;
  DType file_dtype = DType::kFp32;
  const TensorEntry* q = nullptr;
  const TensorEntry* k = nullptr;
  const TensorEntry* v = nullptr;
  const TensorEntry* do_ = nullptr;
  const TensorEntry* alibi_slopes = nullptr;
  const TensorEntry* golden_o = nullptr;  // null: none for this mask
  const TensorEntry* golden_lse = nullptr;
  bool written = true;  // false: computed for its golden values only

  const AttentionProblem& problem() const { return problem_case.problem; }
};

struct RunInput {
  TensorSource source;
  std::vector<RunCase> cases;  // in the natural order of their prefixes
  std::string scale_note;      // which scale, and why
  std::string golden_note;     // why golden values in the file are not compared; mostly empty
};

// Splits the arguments into files and words of the problem line. The words are checked (kUsage)
// before any file is opened (kFailed).
struct RunArguments {
  std::vector<std::string> files;
  std::string words;    // "causal softcap:30"
  ProblemCase options;  // the words on a problem of size 1
};
Result<RunArguments> split_arguments(const std::vector<std::string>& arguments);

Result<TensorSource> open_source(const std::vector<std::string>& files);
Result<RunInput> find_cases(TensorSource source, const RunArguments& arguments,
                            const RunOptions& options);

// Fills q, k, v, do and the slopes with the file's values in the problem's type.
Status load_inputs(const TensorSource& source, const RunCase& c, harness::Tensors& tensors);

// "a2" before "a10"
bool natural_less(const std::string& a, const std::string& b);

}  // namespace tilewise::cli
