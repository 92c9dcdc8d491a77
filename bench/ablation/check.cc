#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "bench/ablation/problem.h"
#include "core/numeric.h"

namespace tilewise::ablation {
namespace {

struct Expected {
  std::vector<float> o, o_magnitude, lse;
};

Expected expected_of(const Problem& problem, const Tensors& tensors) {
  DeviceArray<float> o(problem.elements()), magnitude(problem.elements()), lse(problem.rows());
  must(compute_reference(tensors.params(problem).forward, problem.dtype,
                         {o.data(), magnitude.data(), lse.data()}),
       "reference");
  return {o.to_host(), magnitude.to_host(), lse.to_host()};
}

// Largest error of o as a share of what rounding allows: weights and o are rounded to the element
// type, once each. NaN counts as infinite.
double error_of_o(const Problem& problem, const Tensors& tensors, const Expected& expected) {
  const std::vector<uint16_t> o = tensors.o.to_host();
  const double u = unit_roundoff(problem.dtype);
  double worst = 0;
  for (size_t i = 0; i < o.size(); ++i) {
    const double x = problem.dtype == DType::kBf16 ? float_of_bf16(o[i]) : float_of_fp16(o[i]);
    const double error = std::fabs(x - expected.o[i]);
    const double share = error / (2 * u * expected.o_magnitude[i] + 1e-6);
    worst = std::isnan(share) ? INFINITY : std::max(worst, share);
  }
  return worst;
}

// Largest error of lse; FlashAttention-1's statistics are joined first.
double error_of_lse(const Tensors& tensors, Changes changes, const Expected& expected) {
  const std::vector<float> lse = tensors.lse.to_host(), row_max = tensors.row_max.to_host();
  double worst = 0;
  for (size_t i = 0; i < lse.size(); ++i) {
    const double x = changes.normalise_once ? lse[i] : row_max[i] + std::log(lse[i]);
    const double error = std::fabs(x - expected.lse[i]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

int check_problem(const Problem& problem, uint64_t seed) {
  Tensors tensors(problem, seed);
  const Expected expected = expected_of(problem, tensors);
  int failures = 0;
  for (const Variant& variant : kVariants) {
    tensors.o.poison();
    tensors.lse.poison();
    tensors.row_max.poison();
    const Kernel kernel =
        kernel_of(problem.dtype, problem.head_dim, problem.causal, variant.changes);
    must(launch(kernel, tensors.params(problem)), variant.name);
    must(cudaDeviceSynchronize(), variant.name);
    const double o = error_of_o(problem, tensors, expected);
    const double lse = error_of_lse(tensors, variant.changes, expected);
    if (o <= 1.0 && lse <= 1e-4) continue;
    ++failures;
    std::printf("FAILED %s %s d%d %s S %d: o %.3g of its limit, lse off by %.3g\n", variant.name,
                name_of(problem.dtype), problem.head_dim, problem.causal ? "causal" : "dense",
                problem.seqlen, o, lse);
  }
  return failures;
}

}  // namespace

int check_variants() {
  int failures = 0, problems = 0;
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    for (const int head_dim : {64, 128}) {
      for (const bool causal : {false, true}) {
        for (const int seqlen : {1, 63, 256, 333, 1024, 1531}) {
          const Problem problem{dtype, 2, seqlen, 3, head_dim, causal};
          failures += check_problem(problem, static_cast<uint64_t>(++problems));
        }
      }
    }
  }
  std::printf("check: %d problems, %zu variants each, %d failures\n", problems, kVariants.size(),
              failures);
  return failures;
}

}  // namespace tilewise::ablation
