// What the command returns, and how it says why. Results go to stdout, everything else to stderr.
#pragma once

#include <string>

namespace tilewise::cli {

enum ExitCode : int {
  kOk = 0,
  kFailed = 1,  // a check failed, or the run was refused
  kUsage = 2,   // bad command line or problem text
};

// "tilewise: <message>" on stderr; returns `code`.
ExitCode fail(ExitCode code, const std::string& message);

}  // namespace tilewise::cli
