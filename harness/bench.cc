#include "harness/bench.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <vector>

#include "core/format.h"
#include "harness/data.h"
#include "harness/peak.h"
#include "harness/problem_abi.h"
#include "harness/read_bandwidth.h"
#include "harness/run.h"

namespace tilewise::harness {
namespace {

constexpr double kSliceSeconds = 0.01;  // of the kernel between two loops, if calls allow
constexpr int64_t kDecodeRows = 8;

// Of a copy; q in [0, 1].
double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

// Speeds of the kernel and, beside each, of a loop that shows what the machine gives.
struct Samples {
  std::vector<double> speed, loop, ratio;
  void add(double kernel, double before, double after) {
    const double beside = (before + after) / 2;
    speed.push_back(kernel);
    loop.push_back(beside);
    ratio.push_back(kernel / beside);
  }
  double fraction() const { return quantile(ratio, 0.5); }
  double fraction_quiet() const { return quantile(speed, 0.85) / quantile(loop, 0.85); }
};

double key_value_bytes(const AttentionProblem& p) {
  const Extents k = p.extents(TensorId::kK);
  return static_cast<double>(k.batch * k.seqlen * k.heads * (p.head_dim + p.head_dim_v)) *
         size_of(p.dtype);
}

class Bench {
 public:
  Bench(Tensors& tensors, const BenchOptions& options) : options_(options), tensors_(tensors) {}

  Result<BenchResult> run() {
    const AttentionProblem& p = tensors_.problem();
    RunOptions run_options;
    run_options.threads = options_.threads;
    run_options.kernel = options_.kernel;
    if (p.backward()) {
      RunOptions forward;  // as many threads as there are: it is not timed
      if (Status s = once(Direction::kForward, forward); !s.ok()) return s;
    }
    PreparedRun prepared(tensors_, p.direction, run_options);
    if (!prepared.ok() || prepared.run() != TILEWISE_OK) return error_of(prepared.outcome());
    describe(prepared.outcome());
    measure(prepared);
    return result_;
  }

 private:
  static Status error_of(const RunOutcome& outcome) {
    return Status(static_cast<StatusCode>(outcome.status),
                  format("{}: {}", outcome.stage, outcome.error));
  }

  Status once(Direction direction, const RunOptions& options) {
    PreparedRun prepared(tensors_, direction, options);
    if (!prepared.ok() || prepared.run() != TILEWISE_OK) return error_of(prepared.outcome());
    return {};
  }

  void describe(const RunOutcome& outcome) {
    const AttentionProblem& p = tensors_.problem();
    tilewise_device_info info = {};
    info.struct_size = sizeof info;
    tilewise_device_get_info(TILEWISE_CPU, 0, &info);
    instruction_ = instruction_of(outcome.kernel, name_of(p.dtype));
    result_.problem = print(tensors_.problem_case());
    result_.direction = p.backward() ? "backward" : "forward";
    result_.kernel = outcome.kernel;
    result_.device =
        format("{} ({})", static_cast<const char*>(info.name), static_cast<const char*>(info.isa));
    result_.threads = outcome.threads;
    result_.peak_instruction = name_of(instruction_);
  }

  double now() const { return result_.threads == 1 ? thread_cpu_seconds() : wall_seconds(); }

  double peak() const { return peak_gflops(instruction_, result_.threads); }

  // GB/s of a loop that reads what the kernel has to: all keys, then all values, once each.
  double read_rate() const {
    double bytes = 0, seconds = 0;
    for (const TensorId t : {TensorId::kK, TensorId::kV}) {
      const Extents e = tensors_.problem().extents(t);
      const auto size = static_cast<std::size_t>(e.batch * e.seqlen * e.heads * e.dim) *
                        static_cast<std::size_t>(size_of(tensors_.problem().dtype));
      bytes += static_cast<double>(size);
      seconds += static_cast<double>(size) / read_rate(tensors_.pointer(t), size);
    }
    return bytes / seconds;
  }
  // Several threads read a part each.
  double read_rate(const void* memory, std::size_t bytes) const {
    const auto* data = static_cast<const std::byte*>(memory);
    if (result_.threads == 1) return read_bandwidth(data, bytes);
    const std::size_t part = bytes / static_cast<std::size_t>(result_.threads) / 1024 * 1024;
    std::vector<double> rates(static_cast<std::size_t>(result_.threads));
    std::vector<std::thread> pool;
    for (std::size_t i = 0; i < rates.size(); ++i) {
      pool.emplace_back([=, &rates] { rates[i] = read_bandwidth(data + i * part, part); });
    }
    for (std::thread& t : pool) t.join();
    double sum = 0;
    for (const double rate : rates) sum += rate;
    return sum;
  }

  void measure(PreparedRun& prepared) {
    const double flops = flops_of(tensors_.problem_case());
    const double bytes = key_value_bytes(tensors_.problem());
    const bool decode = is_decode_shaped(tensors_.problem()) && bytes >= 1 << 20;
    Samples compute, memory;
    std::vector<double> seconds;
    double total = 0;
    // One read loop between two slices of the kernel serves both: two in a row would find a part of
    // their bytes in the last cache.
    double read_before = decode ? read_rate() : 0;
    while (total < options_.min_seconds || static_cast<int>(seconds.size()) < options_.rounds) {
      const double peak_before = peak();
      const double start = now();
      double elapsed = 0;
      int calls = 0;
      for (; elapsed < kSliceSeconds; ++calls) {
        prepared.run();
        elapsed = now() - start;
      }
      const double read_after = decode ? read_rate() : 0, peak_after = peak();
      total += elapsed;
      seconds.push_back(elapsed / calls);
      compute.add(flops / seconds.back() * 1e-9, peak_before, peak_after);
      if (decode) memory.add(bytes / seconds.back() * 1e-9, read_before, read_after);
      read_before = read_after;
    }
    const double median = quantile(seconds, 0.5);
    result_.rounds = static_cast<int32_t>(seconds.size());
    result_.ms = median * 1e3;
    result_.gflops = flops / median * 1e-9;
    result_.peak_gflops = quantile(compute.loop, 0.5);
    result_.peak_fraction = compute.fraction();
    result_.peak_fraction_quiet = compute.fraction_quiet();
    if (!decode) return;
    result_.peak_instruction = "read";
    result_.peak_fraction = memory.fraction();
    result_.peak_fraction_quiet = memory.fraction_quiet();
    result_.gbytes_per_s = bytes / median * 1e-9;
    result_.read_gbytes_per_s = quantile(memory.loop, 0.5);
  }

  BenchOptions options_;
  Tensors& tensors_;
  PeakInstruction instruction_ = PeakInstruction::kFmaFp32Scalar;
  BenchResult result_;
};

class JsonLine {
 public:
  void add(const char* key, const std::string& value) {
    std::string quoted;
    for (const char c : value) {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    field(key, "\"" + quoted + "\"");
  }
  void add(const char* key, double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", value);
    field(key, text);
  }
  void add(const char* key, int32_t value) { field(key, to_text(static_cast<int64_t>(value))); }
  std::string text() const { return "{" + fields_ + "}"; }

 private:
  void field(const char* key, const std::string& value) {
    fields_ += format("{}\"{}\": {}", fields_.empty() ? "" : ", ", key, value);
  }
  std::string fields_;
};

}  // namespace

bool is_decode_shaped(const AttentionProblem& p) {
  return !p.backward() && p.longest_q() <= kDecodeRows && p.longest_k() > p.longest_q();
}

Result<BenchResult> bench_case(const ProblemCase& c, const BenchOptions& options) {
  Tensors tensors(c);
  if (Status s = fill_inputs(tensors); !s.ok()) return s;
  return bench_tensors(tensors, options);
}

Result<BenchResult> bench_tensors(Tensors& tensors, const BenchOptions& options) {
  return Bench(tensors, options).run();
}

std::string to_json(const BenchResult& r) {
  JsonLine line;
  line.add("problem", r.problem);
  line.add("direction", r.direction);
  line.add("kernel", r.kernel);
  line.add("device", r.device);
  line.add("threads", r.threads);
  line.add("rounds", r.rounds);
  line.add("ms", r.ms);
  line.add("gflops", r.gflops);
  line.add("peak_gflops", r.peak_gflops);
  line.add("peak_instruction", r.peak_instruction);
  line.add("peak_fraction", r.peak_fraction);
  line.add("peak_fraction_quiet", r.peak_fraction_quiet);
  if (r.gbytes_per_s > 0) {
    line.add("gbytes_per_s", r.gbytes_per_s);
    line.add("read_gbytes_per_s", r.read_gbytes_per_s);
  }
  return line.text();
}

}  // namespace tilewise::harness
