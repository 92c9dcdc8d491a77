// One row of attention in words, for files whose metadata has the tokens.
#pragma once

#include <string>
#include <vector>

#include "cli/run_input.h"

namespace tilewise::cli {

// The tokens of a case from "<start of its prefix>.tokens", separated by spaces; empty when there
// are none, or not one for every query and key.
std::vector<std::string> tokens_of(const Metadata& metadata, const RunCase& c);

struct AttentionRow {
  double interest =
      0;  // weight on other words than itself, neighbours and marks; 0: nothing to show
  std::string case_label, head;
  std::vector<std::string> tokens;
  size_t query = 0;
  std::vector<double> weights;  // one for each key
};

// The most telling row of the case after a forward run, judged by its own q, k and lse.
AttentionRow find_row(const Metadata& metadata, const RunCase& c, const harness::Tensors& tensors);
// A few lines: the words around the query, and the top keys with their weights as bars.
std::string row_in_words(const AttentionRow& row);

}  // namespace tilewise::cli
