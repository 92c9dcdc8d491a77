// Problems and options that no plan may be made of, and calls that may not run: one edit of a good
// call each (the table of invalid input, I1 to I12, in the reliability targets).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/capi/call.h"

namespace tilewise::test {

struct BadCase {
  std::string name;  // distinct
  Kind kind;
  std::function<void(Call&)> edit;
  tilewise_status status = TILEWISE_INVALID_ARGUMENT;
  std::vector<std::string> words;  // that the message must have: field, value
};

std::vector<BadCase> bad_problems();  // edit runs before create()
std::vector<BadCase> bad_calls();     // edit runs before run()

}  // namespace tilewise::test
