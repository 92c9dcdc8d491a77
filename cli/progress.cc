#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cli/terminal.h"
#include "core/format.h"

namespace tilewise::cli {
namespace {

double seconds_between(std::chrono::steady_clock::time_point a,
                       std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

}  // namespace

std::string duration_text(double seconds) {
  const long whole = std::lround(std::max(0.0, seconds));
  char text[48];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%ld:%02ld", whole / 60, whole % 60);
  }
  return text;
}

std::string estimate_text(const ProgressState& s) {
  if (s.done <= 0 || s.seconds_done <= 0 || s.total <= 0) return {};
  const double rate = s.done / s.seconds_done;
  // The present step is taken to be as far as its time says, but never finished.
  const double at = s.done + std::min(0.95 * s.step_work, s.seconds_in_step * rate);
  const double left = std::max(0.0, s.total - at) / rate;
  const int percent = static_cast<int>(std::clamp(100 * at / s.total, 0.0, 99.0));
  return format("{} %, {} left", percent, duration_text(left));
}

Progress::Progress(bool quiet, int steps, double total_work)
    : quiet_(quiet), terminal_(is_terminal(STDERR_FILENO)), begin_(Clock::now()) {
  step_begin_ = begin_;
  state_.steps = steps;
  state_.total = total_work;
  if (!quiet_) drawer_ = std::thread([this] { draw_until_stopped(); });
}

Progress::~Progress() { finish(); }

void Progress::begin_step(std::string label, double work) {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  state_.done += state_.step_work;
  state_.seconds_done = seconds_between(begin_, now);
  state_.step_work = work;
  ++state_.step;
  step_begin_ = now;
  label_ = std::move(label);
}

void Progress::print(const std::string& line) {
  const std::lock_guard lock(mutex_);
  erase();
  std::fprintf(stdout, "%s\n", line.c_str());
  std::fflush(stdout);
}

void Progress::finish() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (drawer_.joinable()) drawer_.join();
  erase();
}

void Progress::draw_until_stopped() {
  using std::chrono::milliseconds;
  const milliseconds period(terminal_ ? 250 : 10'000);
  std::unique_lock lock(mutex_);
  milliseconds wait(terminal_ ? 1000 : 10'000);
  while (!wake_.wait_for(lock, wait, [this] { return stop_; })) {
    draw();
    wait = period;
  }
}

void Progress::draw() {
  state_.seconds_in_step = seconds_between(step_begin_, Clock::now());
  std::string text = format("[{}/{}] ", state_.step, state_.steps);
  const std::string estimate = estimate_text(state_);
  if (!estimate.empty()) text += estimate + ", ";
  text += duration_text(seconds_between(begin_, Clock::now())) + " so far: ";
  constexpr size_t kWidth = 79;  // a longer line would wrap and could not be redrawn
  text = (text + label_).substr(0, kWidth);
  std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "%s\n", text.c_str());
  std::fflush(stderr);
  drawn_ = terminal_;
}

void Progress::erase() {
  if (!drawn_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace tilewise::cli
