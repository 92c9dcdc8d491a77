// bench_case: the time of a case as a share of what the machine can do at that moment.
#pragma once

#include <cstdint>
#include <string>

#include "core/problem.h"
#include "core/status.h"
#include "harness/buffers.h"

namespace tilewise::harness {

struct BenchOptions {
  int32_t threads = 1;       // 1: thread CPU time, otherwise wall time; 0: all cores
  std::string kernel;        // empty: the first that can
  double min_seconds = 0.5;  // at least this long in the kernel,
  int32_t rounds = 15;       // and at least this many rounds of loop, kernel, loop
};

struct BenchResult {
  std::string problem;    // the case as text
  std::string direction;  // "forward" or "backward": the call that was timed
  std::string kernel;
  std::string device;  // processor and instruction set in use
  int32_t threads = 1;
  int32_t rounds = 0;
  double ms = 0;           // median
  double gflops = 0;       // at the median time
  double peak_gflops = 0;  // median of the loops
  // What the shares are of: a multiply-add, or "read" for decode-shaped problems (few query rows),
  // whose time goes into reading k and v.
  std::string peak_instruction;
  double peak_fraction = 0;        // median of the ratios to the loops beside each run
  double peak_fraction_quiet = 0;  // 85th percentile of speed over that of the loop
  // Of decode-shaped problems, else 0: bytes of k and v read once, and the speed of a four-stream
  // read loop over the same bytes: all of k, then all of v.
  double gbytes_per_s = 0;
  double read_gbytes_per_s = 0;
};

Result<BenchResult> bench_case(const ProblemCase& c, const BenchOptions& options = {});
// For tensors that are filled already; the outputs are overwritten.
Result<BenchResult> bench_tensors(Tensors& tensors, const BenchOptions& options = {});
std::string to_json(const BenchResult& r);  // one line

// At most 8 query rows per head: time goes with the bytes of k and v.
bool is_decode_shaped(const AttentionProblem& p);

}  // namespace tilewise::harness
