// AttentionProblem <-> the C ABI's tilewise_problem, so that everything here runs as a user would.
#pragma once

#include "core/problem.h"
#include "tilewise/tilewise.h"

namespace tilewise::harness {

tilewise_problem to_abi(const AttentionProblem& problem);
AttentionProblem from_abi(const tilewise_problem& problem);

// The dense problem of one sequence of `c`, with sizes of its own: what oracle and flop counts work
// on. Strides stay those of the case.
AttentionProblem sequence_problem(const ProblemCase& c, int64_t sequence);

// Of the case, from its real lengths when varlen.
double flops_of(const ProblemCase& c);

}  // namespace tilewise::harness
