// What may be drawn where, and Ctrl-C.
#pragma once

#include <string>
#include <string_view>

namespace tilewise::cli {

bool is_terminal(int descriptor);  // and able to move its cursor (TERM is not "dumb")

enum class Colour { kGreen = 32, kRed = 31, kBold = 1, kDim = 2 };
// With escape sequences when stdout is a terminal and NO_COLOR is not set, else as it is.
std::string coloured(std::string_view text, Colour colour);

// From the first call on, Ctrl-C sets a flag instead of ending the process; the second one ends it,
// as SIGTERM and SIGHUP do at once, and leaves no unfinished output file behind.
void catch_interrupts();
bool interrupted();
// After interrupted() and after all output: ends the process as the signal would have.
void die_of_interrupt();

}  // namespace tilewise::cli
