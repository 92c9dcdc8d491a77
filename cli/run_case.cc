#include "cli/run_case.h"

#include <algorithm>
#include <cmath>

#include "cli/io/element.h"
#include "harness/oracle.h"

namespace tilewise::cli {
namespace {

std::vector<double> values_of(const harness::Tensors& tensors, TensorId t) {
  const Extents e = tensors.problem().extents(t);
  std::vector<double> values(static_cast<size_t>(e.batch * e.seqlen * e.heads * e.dim));
  double* at = values.data();
  for (int64_t b = 0; b < e.batch; ++b) {
    for (int64_t s = 0; s < e.seqlen; ++s) {
      for (int64_t h = 0; h < e.heads; ++h, at += e.dim) tensors.get_row(t, b, s, h, at);
    }
  }
  return values;
}

std::vector<double> lse_of(const harness::Tensors& tensors) {
  const std::vector<float> lse = tensors.packed_lse();
  return {lse.begin(), lse.end()};
}

Result<std::vector<double>> golden_values(const TensorSource& source, const TensorEntry& entry,
                                          DType& dtype) {
  dtype_of(entry.type, dtype);
  const Result<Bytes> bytes = source.read(entry);
  if (!bytes) return bytes.status();
  const size_t size = static_cast<size_t>(size_of(dtype));
  std::vector<double> values(bytes->size() / size);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = harness::load_element(dtype, bytes->data() + i * size);
  }
  return values;
}

// Golden values are held to the accuracy rules as if they were the reference. When they are stored
// with fewer digits than the computation has, only to their own rounding.
GoldenResult judge(const std::vector<harness::RuleResult>& rules, const std::string& tensor,
                   DType computed, DType stored, const std::vector<double>& got,
                   const std::vector<double>& golden) {
  GoldenResult result;
  result.error = harness::difference(got, golden).max_abs;
  if (unit_roundoff(stored) > unit_roundoff(computed)) {
    double largest = 1;
    for (const double x : golden) {
      if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
    }
    result.ok = result.error <= 4 * unit_roundoff(stored) * largest;
    if (!result.ok) result.why = format("golden {}: off by {}", tensor, result.error);
    return result;
  }
  for (const harness::RuleResult& rule : rules) {
    if (rule.tensor != tensor || rule.ok()) continue;
    result.ok = false;
    result.why = format("golden {}: rule {}: {}", tensor, rule.rule, rule.where);
  }
  return result;
}

Status compare_golden(const TensorSource& source, const harness::Tensors& tensors,
                      harness::Oracle want, CaseResult& result) {
  const RunCase& c = *result.run_case;
  const DType computed = c.problem().dtype;
  DType stored_o{}, stored_lse{};
  std::vector<double> o, lse;
  if (c.golden_o != nullptr) {
    Result<std::vector<double>> values = golden_values(source, *c.golden_o, stored_o);
    if (!values) return values.status();
    o = want.o = std::move(*values);
  }
  if (c.golden_lse != nullptr) {
    Result<std::vector<double>> values = golden_values(source, *c.golden_lse, stored_lse);
    if (!values) return values.status();
    lse = want.lse = std::move(*values);
  }
  const std::vector<harness::RuleResult> rules = harness::check_accuracy(tensors, want);
  if (c.golden_o != nullptr) {
    result.golden_o = judge(rules, "o", computed, stored_o, values_of(tensors, TensorId::kO), o);
  }
  if (c.golden_lse != nullptr) {
    // The library stores lse in fp32 whatever the problem's type.
    result.golden_lse = judge(rules, "lse", DType::kFp32, stored_lse, lse_of(tensors), lse);
  }
  return {};
}

}  // namespace

const harness::RuleResult* CaseResult::worst_rule() const {
  const harness::RuleResult* worst = nullptr;
  for (const harness::RuleResult& rule : rules) {
    if (worst == nullptr || !(rule.worst <= worst->worst)) worst = &rule;
  }
  return worst;
}

bool CaseResult::ok() const {
  return outcome.ok() &&
         std::all_of(rules.begin(), rules.end(), [](const auto& r) { return r.ok(); }) &&
         (!golden_o || golden_o->ok) && (!golden_lse || golden_lse->ok);
}

Status compute(const RunCase& c, const RunOptions& options, harness::Tensors& tensors,
               CaseResult& result) {
  result.run_case = &c;
  harness::RunOptions run;
  run.threads = options.plan.threads;
  run.kernel = options.plan.kernel;
  result.outcome = harness::run_case(tensors, run);
  if (!result.outcome.ok()) {
    return {static_cast<StatusCode>(result.outcome.status),
            format("case {}: {}", quote(c.prefix), result.outcome.error)};
  }
  if (result.outcome.damage) {
    return {StatusCode::kInternal, format("case {}: {}", quote(c.prefix), *result.outcome.damage)};
  }
  return {};
}

Status check_result(const TensorSource& source, const RunOptions& options,
                    harness::Tensors& tensors, CaseResult& result) {
  const RunCase& c = *result.run_case;
  const harness::Oracle want = harness::oracle(tensors);
  result.rules = harness::check_accuracy(tensors, want);
  result.o_error = harness::difference(values_of(tensors, TensorId::kO), want.o).max_abs;
  result.lse_error = harness::difference(lse_of(tensors), want.lse).max_abs;
  if (c.problem().backward()) {
    const std::pair<TensorId, const std::vector<double>*> gradients[] = {
        {TensorId::kDq, &want.dq}, {TensorId::kDk, &want.dk}, {TensorId::kDv, &want.dv}};
    for (const auto& [t, values] : gradients) {
      const double error = harness::difference(values_of(tensors, t), *values).relative_l2;
      if (!(error <= result.gradient_error)) result.gradient_error = error;
    }
  }
  if (Status status = compare_golden(source, tensors, want, result); !status.ok()) return status;
  harness::BenchOptions bench;
  // One thread is timed in CPU time, which other programs on the machine hardly disturb.
  bench.threads = std::max(1, options.plan.threads);
  bench.kernel = options.plan.kernel;
  bench.min_seconds = 0.1;
  bench.rounds = 7;
  Result<harness::BenchResult> timed = harness::bench_tensors(tensors, bench);
  if (!timed) return timed.status();
  result.bench = std::move(*timed);
  return {};
}

}  // namespace tilewise::cli
