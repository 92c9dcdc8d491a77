// Where the results of `run` go. Nothing appears under its name before commit().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/run_input.h"

namespace tilewise::cli {

class ResultWriter {
 public:
  virtual ~ResultWriter() = default;
  virtual Status append(const RunCase& c, const harness::Tensors& tensors) = 0;
  virtual Status commit() = 0;
  virtual std::string summary() const = 0;  // "out.safetensors: 18 tensors"
};

// By the output's name: a .safetensors file, or a directory for o.npy, lse.npy, … of a single case.
Result<std::unique_ptr<ResultWriter>> create_writer(const std::string& output,
                                                    const RunInput& input);

}  // namespace tilewise::cli
