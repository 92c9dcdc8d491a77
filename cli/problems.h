// Problems as the command line gives them: text, or files of one problem a line.
#pragma once

#include <string>
#include <vector>

#include "core/problem.h"
#include "core/status.h"

namespace tilewise::cli {

// Each argument is a file when there is one of that name ("-" is stdin), else a problem; words that
// were not quoted ("fp32 b1 sq5" as three arguments) are put together again. Never empty.
Result<std::vector<ProblemCase>> read_cases(const std::vector<std::string>& arguments);
Result<ProblemCase> read_case(const std::string& text);

// Of a word that is none, the one it probably was meant to be; empty when none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

// An error when the tensors of the case (with `extra_bytes` for each element besides the element
// itself) do not fit into the memory that is free now.
Status check_memory(const ProblemCase& c, double extra_bytes);

}  // namespace tilewise::cli
