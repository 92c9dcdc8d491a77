// Random problems, and the smallest problem that still fails.
#pragma once

#include <cstdint>
#include <functional>

#include "core/problem.h"

namespace tilewise::harness {

struct FuzzOptions {
  // Bounds sum over heads and sequences of seqlen_q * seqlen_k * (d + dv): the oracle's time.
  double max_work = 3e6;
};

// Valid for every seed. Seeds reach every pair of features, every dtype and both directions.
ProblemCase random_case(uint64_t seed, const FuzzOptions& options = {});

// Simplifies c step by step (options off, sizes down, layout plain, data normal) while `fails`
// stays true of it. Calls `fails` a few hundred times at most.
ProblemCase minimise(ProblemCase c, const std::function<bool(const ProblemCase&)>& fails);

}  // namespace tilewise::harness
