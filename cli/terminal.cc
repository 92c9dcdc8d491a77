#include "cli/terminal.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "cli/exit_code.h"
#include "cli/io/file.h"
#include "core/format.h"

namespace tilewise::cli {
namespace {

std::atomic<bool> g_interrupted = false;

// The signal is blocked while its handler runs: the process ends when the handler returns.
void end_by(int signal_number) {
  remove_unfinished_files();
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void on_interrupt(int signal_number) {
  if (g_interrupted.exchange(true)) {
    end_by(signal_number);
    return;
  }
  constexpr char kText[] = "\ninterrupted: stopping after the present step (again: at once)\n";
  [[maybe_unused]] const auto put = write(STDERR_FILENO, kText, sizeof kText - 1);
}

}  // namespace

ExitCode fail(ExitCode code, const std::string& message) {
  std::fflush(stdout);
  std::fprintf(stderr, "tilewise: %s\n", message.c_str());
  return code;
}

bool is_terminal(int descriptor) {
  const char* term = std::getenv("TERM");
  return isatty(descriptor) != 0 && term != nullptr && std::string_view(term) != "dumb";
}

std::string coloured(std::string_view text, Colour colour) {
  static const bool on = [] {
    const char* no_color = std::getenv("NO_COLOR");
    return is_terminal(STDOUT_FILENO) && (no_color == nullptr || *no_color == '\0');
  }();
  if (!on) return std::string(text);
  return format("\033[{}m{}\033[0m", static_cast<int>(colour), text);
}

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  action.sa_handler = end_by;
  for (const int signal_number : {SIGTERM, SIGHUP}) {
    struct sigaction before {};
    sigaction(signal_number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(signal_number, &action, nullptr);  // nohup
  }
}

bool interrupted() { return g_interrupted; }

void die_of_interrupt() {
  std::fflush(stdout);
  signal(SIGINT, SIG_DFL);
  raise(SIGINT);
}

}  // namespace tilewise::cli
