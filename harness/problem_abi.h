// AttentionProblem <-> the C ABI's tilewise_problem, so that everything here runs as a user would.
#pragma once

#include "core/problem.h"
#include "tilewise/tilewise.h"

namespace tilewise::harness {

tilewise_problem to_abi(const AttentionProblem& problem);
AttentionProblem from_abi(const tilewise_problem& problem);

// Of the case's sequence (or batch element) b.
Lengths lengths_of(const ProblemCase& c, int64_t b);

// AttentionProblem::flops(), from the real lengths when varlen.
double flops_of(const ProblemCase& c);

}  // namespace tilewise::harness
