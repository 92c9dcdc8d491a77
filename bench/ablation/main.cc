// What FlashAttention-2's changes are worth: times the variants of forward.cuh beside the library's
// sm_80 forward, 16,384 tokens and a hidden size of 2048 whatever the length of the sequence.
//
//   build/cuda/bin/tilewise_bench_ablation [--json FILE] [--seqlens 512,2048] [--rounds N]
//
// All are checked first. Each time is the median of N rounds (7) in which they take turns, CUDA
// events around one launch, L2 filled with other data before it. Draw the JSON with plot.py.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "bench/ablation/library.h"
#include "bench/ablation/problem.h"

namespace tilewise::ablation {
namespace {

constexpr int kTokens = 16384, kHidden = 2048;

struct Options {
  std::string json;
  std::vector<int> seqlens = {512, 1024, 2048, 4096, 8192, 16384};
  int rounds = 7;
};

struct Timing {
  Problem problem;
  std::string variant;
  double ms;

  double tflops() const { return problem.flops() / ms * 1e-9; }
};

class Clock {
 public:
  Clock() : other_(256 << 20) {
    must(cudaEventCreate(&begin_), "cudaEventCreate");
    must(cudaEventCreate(&end_), "cudaEventCreate");
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  ~Clock() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  double ms(const std::function<void()>& run) {
    must(cudaMemsetAsync(other_.data(), 0, other_.bytes(), nullptr), "cudaMemset");
    must(cudaEventRecord(begin_, nullptr), "cudaEventRecord");
    run();
    must(cudaEventRecord(end_, nullptr), "cudaEventRecord");
    must(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return ms;
  }

 private:
  DeviceArray<char> other_;
  cudaEvent_t begin_{}, end_{};
};

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

std::vector<Timing> time_problem(const Problem& problem, int rounds, Clock& clock) {
  const Tensors tensors(problem, 1);
  const LibraryForward library(problem);
  std::vector<std::string> names;
  std::vector<std::function<void()>> runs;
  for (const Variant& variant : kVariants) {
    const Kernel kernel =
        kernel_of(problem.dtype, problem.head_dim, problem.causal, variant.changes);
    names.push_back(variant.name);
    runs.push_back(
        [=, params = tensors.params(problem)] { must(launch(kernel, params), variant.name); });
  }
  names.push_back("tilewise");
  runs.push_back([&] { library.run(tensors); });
  std::vector<std::vector<double>> ms(runs.size());
  for (int round = -1; round < rounds; ++round) {  // the first warms up
    for (size_t i = 0; i < runs.size(); ++i) {
      const double time = clock.ms(runs[i]);
      if (round >= 0) ms[i].push_back(time);
    }
  }
  std::vector<Timing> timings;
  for (size_t i = 0; i < runs.size(); ++i) timings.push_back({problem, names[i], median(ms[i])});
  return timings;
}

void print_footprints(DType dtype) {
  std::printf("%-8s %4s %-7s %9s %8s %7s %6s %6s\n", "kernel", "d", "mask", "tile", "warps",
              "shared", "regs", "spill");
  for (const int head_dim : {64, 128}) {
    for (const Variant& variant : kVariants) {
      for (const bool causal : {false, true}) {
        const Kernel kernel = kernel_of(dtype, head_dim, causal, variant.changes);
        cudaFuncAttributes attributes{};
        must(cudaFuncGetAttributes(&attributes, kernel.function), "cudaFuncGetAttributes");
        const Tile& tile = kernel.tile;
        std::printf("%-8s %4d %-7s %4d x %3d %3d x %2d %7d %6d %6zu\n", variant.name, head_dim,
                    causal ? "causal" : "dense", tile.block_m, tile.block_n, tile.row_warps,
                    tile.key_warps, kernel.shared_bytes, attributes.numRegs,
                    attributes.localSizeBytes);
      }
    }
  }
}

void print_row(const std::vector<Timing>& timings) {
  const Problem& p = timings.front().problem;
  std::printf("%4d %-7s %6d", p.head_dim, p.causal ? "causal" : "dense", p.seqlen);
  for (const Timing& t : timings) std::printf(" %8.1f", t.tflops());
  std::printf("\n");
  std::fflush(stdout);
}

std::string json_of(const std::vector<Timing>& timings, int rounds) {
  cudaDeviceProp device{};
  must(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::ostringstream out;
  out << "{\n \"device\": \"" << device.name << "\", \"tokens\": " << kTokens
      << ", \"hidden\": " << kHidden << ", \"rounds\": " << rounds << ",\n \"timings\": [";
  for (size_t i = 0; i < timings.size(); ++i) {
    const Timing& t = timings[i];
    out << (i == 0 ? "\n" : ",\n") << "  {\"variant\": \"" << t.variant << "\", \"dtype\": \""
        << name_of(t.problem.dtype) << "\", \"head_dim\": " << t.problem.head_dim
        << ", \"causal\": " << (t.problem.causal ? "true" : "false")
        << ", \"seqlen\": " << t.problem.seqlen << ", \"ms\": " << t.ms
        << ", \"tflops\": " << t.tflops() << "}";
  }
  out << "\n ]\n}\n";
  return out.str();
}

void measure(const Options& options) {
  print_footprints(DType::kBf16);
  std::printf("\nTFLOP/s, bf16\n%4s %-7s %6s", "d", "mask", "S");
  for (const Variant& variant : kVariants) std::printf(" %8s", variant.name);
  std::printf(" %8s\n", "tilewise");
  Clock clock;
  std::vector<Timing> all;
  for (const int head_dim : {64, 128}) {
    for (const bool causal : {false, true}) {
      for (const int seqlen : options.seqlens) {
        const Problem problem{DType::kBf16,       kTokens / seqlen, seqlen,
                              kHidden / head_dim, head_dim,         causal};
        const std::vector<Timing> timings = time_problem(problem, options.rounds, clock);
        print_row(timings);
        all.insert(all.end(), timings.begin(), timings.end());
      }
    }
  }
  if (!options.json.empty()) std::ofstream(options.json) << json_of(all, options.rounds);
}

// False when the arguments are not understood.
bool parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (i + 1 == argc) return false;
    const std::string value = argv[++i];
    if (argument == "--json") {
      options->json = value;
    } else if (argument == "--rounds") {
      options->rounds = std::atoi(value.c_str());
    } else if (argument == "--seqlens") {
      options->seqlens.clear();
      std::istringstream list(value);
      for (std::string x; std::getline(list, x, ',');) {
        options->seqlens.push_back(std::atoi(x.c_str()));
      }
    } else {
      return false;
    }
  }
  const auto fits = [](int seqlen) { return seqlen > 0 && kTokens % seqlen == 0; };
  return options->rounds > 0 && std::all_of(options->seqlens.begin(), options->seqlens.end(), fits);
}

}  // namespace
}  // namespace tilewise::ablation

int main(int argc, char** argv) {
  tilewise::ablation::Options options;
  if (!tilewise::ablation::parse(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: tilewise_bench_ablation [--json FILE] [--seqlens 512,...] [--rounds N]\n"
                 "Lengths divide %d.\n",
                 tilewise::ablation::kTokens);
    return 2;
  }
  if (tilewise::ablation::check_variants() > 0) return 1;
  tilewise::ablation::measure(options);
}
