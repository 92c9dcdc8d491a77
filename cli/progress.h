// How far a long command is, on stderr: one line redrawn in place on a terminal, else a plain line
// every ten seconds. Nothing before the first second, nothing at all when quiet.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace tilewise::cli {

struct ProgressState {
  int step = 0, steps = 0;
  double done = 0, total = 0;  // work of the finished steps, of all steps
  double step_work = 0;        // of the present step
  double seconds_done = 0;     // that the finished steps took
  double seconds_in_step = 0;
};

// "12 %, 0:41 left"; without a finished step nothing is known about the rate.
std::string estimate_text(const ProgressState& s);
// "0:07", "12:30", "3:05:00"
std::string duration_text(double seconds);

class Progress {
 public:
  // `total_work` in any unit that is about proportional to time.
  Progress(bool quiet, int steps, double total_work);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // The step before it, if any, is finished.
  void begin_step(std::string label, double work);
  // A line of results on stdout; the display makes room for it.
  void print(const std::string& line);
  // Takes the display away.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  void draw_until_stopped();
  void draw();
  void erase();

  const bool quiet_, terminal_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false, drawn_ = false;
  std::string label_;
  ProgressState state_;
  Clock::time_point begin_, step_begin_;
  std::thread drawer_;
};

}  // namespace tilewise::cli
