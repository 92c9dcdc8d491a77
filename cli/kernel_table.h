// The registry as a table: what each kernel computes, found by asking its own supports().
#pragma once

#include <string>

namespace tilewise::cli {

// Markdown, the same on every machine: the best instruction set is assumed.
std::string kernel_table();

}  // namespace tilewise::cli
