#include "harness/accuracy.h"

#include <cmath>
#include <limits>

#include "core/format.h"
#include "harness/accuracy_limits.h"
#include "harness/accuracy_rule.h"
#include "harness/rows.h"

namespace tilewise::harness {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string place(int64_t sequence, int64_t s, int64_t h, int64_t x) {
  std::string out = format("b {}", sequence);
  if (s >= 0) out += format(" s {}", s);
  out += format(" h {}", h);
  if (x >= 0) out += format(" x {}", x);
  return out;
}

// Sums over the elements of one head, or of a tensor.
struct Sums {
  double error2 = 0, want2 = 0, noise2 = 0, signed_error = 0, magnitude = 0;
  int64_t count = 0;
};

// got must be what want says: finite, or not. Near the end of the type's range either will do.
enum class Kind { kCompare, kSkip, kWrong };
Kind kind_of(DType type, double got, double want) {
  if (std::isnan(want)) return std::isfinite(got) ? Kind::kWrong : Kind::kSkip;
  const double most = largest_finite(type) * (1 - 4 * unit_roundoff(type));
  if (std::abs(want) > most) {
    return std::abs(got) >= most * (1 - 4 * unit_roundoff(type)) &&
                   std::signbit(got) == std::signbit(want)
               ? Kind::kSkip
               : Kind::kWrong;
  }
  return std::isfinite(got) ? Kind::kCompare : Kind::kWrong;
}

class Checker {
 public:
  Checker(const Tensors& tensors, const Oracle& want)
      : t_(tensors), p_(tensors.problem()), want_(want), u_(unit_roundoff(p_.dtype)) {}

  std::vector<RuleResult> run(bool lse) {
    for (const HeadPlace& at : head_places(t_.problem_case())) {
      Scores scores;
      for (int64_t h = at.head_kv * p_.group(); h < (at.head_kv + 1) * p_.group(); ++h) {
        const Scores own = largest_scores(at, h);
        check_output(at, h, own);
        if (lse) check_lse(at, h);
        if (p_.backward()) check_gradient(dq_, want_.dq, want_.dq_noise, at, h, own);
        scores = larger(scores, own);
      }
      if (!p_.backward()) continue;
      check_gradient(dk_, want_.dk, want_.dk_noise, at, at.head_kv, scores);
      check_gradient(dv_, want_.dv, want_.dv_noise, at, at.head_kv, scores);
    }
    std::vector<RuleResult> out;
    for (const Rule* r : {&finite_o_, &finite_lse_, &dq_.finite, &dk_.finite, &dv_.finite, &empty_,
                          &a1_, &a2_, &a3_, &dq_.l2, &dk_.l2, &dv_.l2, &a7_}) {
      r->add_to(out);
    }
    return out;
  }

 private:
  struct Gradient {
    explicit Gradient(TensorId id) : t(id), finite("finite", id), l2("A6", id) {}
    TensorId t;
    Rule finite, l2;
  };

  // Of one row, or the largest of a head.
  struct Scores {
    double magnitude = 0, error = 0;
  };
  static Scores larger(Scores a, Scores b) {
    return {std::max(a.magnitude, b.magnitude), std::max(a.error, b.error)};
  }
  Scores row_scores(int64_t row) const {
    return {want_.score_magnitude[row], want_.score_error[row]};
  }
  Scores largest_scores(const HeadPlace& at, int64_t h) const {
    Scores most;
    for (int64_t i = 0; i < at.n.q; ++i) {
      const Scores row = row_scores(lse_index(p_, at.b, at.q_start + i, h));
      if (std::isfinite(row.magnitude)) most = larger(most, row);
    }
    return most;
  }
  AccuracyLimits limits_of(Scores s, const HeadPlace& at) const {
    return limits_for(t_.problem_case(), s.magnitude, s.error, at.n.k);
  }

  void check_lse(const HeadPlace& at, int64_t h) {
    for (int64_t i = 0; i < at.n.q; ++i) {
      const int64_t index = lse_index(p_, at.b, at.q_start + i, h);
      const double want = want_.lse[index], got = t_.get_lse(at.b, at.q_start + i, h);
      const auto here = [&] {
        return place(at.sequence, i, h, -1) + format(": got {}, want {}", got, want);
      };
      const bool same = std::isnan(want)     ? std::isnan(got)
                        : want == -kInfinity ? got == want
                                             : std::isfinite(got);
      if (finite_lse_.see(same ? 0 : 1, 0.5)) finite_lse_.where(here());
      if (!same || !std::isfinite(want)) continue;
      const Scores scores = row_scores(index);
      const double limit = std::max(limits_of(scores, at).lse * std::max(1.0, std::abs(want)),
                                    4 * 0x1p-24 * scores.error);
      if (a3_.see(std::abs(got - want), limit)) a3_.where(here());
    }
  }

  void check_output(const HeadPlace& at, int64_t h, Scores head_scores) {
    std::vector<double> got(static_cast<std::size_t>(p_.head_dim_v));
    Sums sums;
    for (int64_t i = 0; i < at.n.q; ++i) {
      t_.get_row(TensorId::kO, at.b, at.q_start + i, h, got.data());
      const int64_t first = packed_index(p_, TensorId::kO, at.b, at.q_start + i, h);
      const int64_t row = lse_index(p_, at.b, at.q_start + i, h);
      const AccuracyLimits limits = limits_of(row_scores(row), at);
      for (int64_t x = 0; x < p_.head_dim_v; ++x) {
        const double want = want_.o[first + x], error = got[x] - want;
        const auto here = [&] {
          return place(at.sequence, i, h, x) + format(": got {}, want {}", got[x], want);
        };
        const Kind kind = kind_of(p_.dtype, got[x], want);
        if (finite_o_.see(kind == Kind::kWrong, 0.5)) finite_o_.where(here());
        if (kind != Kind::kCompare) continue;
        if (want_.lse[row] == -kInfinity && empty_.see(got[x] == 0 ? 0 : 1, 0.5)) {
          empty_.where(here());
        }
        const double magnitude = want_.o_magnitude[first + x];
        if (a1_.see(std::abs(error), limits.o_factor * u_ * magnitude + limits.smallest)) {
          a1_.where(here());
        }
        add(sums, error, want, want_.o_noise[first + x]);
        sums.magnitude += magnitude;
      }
    }
    check_head(sums, at, h, head_scores);
  }

  static void add(Sums& sums, double error, double want, double noise) {
    sums.error2 += error * error;
    sums.want2 += want * want;
    sums.noise2 += noise * noise;
    sums.signed_error += error;
    ++sums.count;
  }

  void check_head(const Sums& sums, const HeadPlace& at, int64_t h, Scores scores) {
    if (sums.count == 0) return;
    const AccuracyLimits limits = limits_of(scores, at);
    see_l2(a2_, sums, limits.o_l2, limits.smallest, at, h);
    if (sums.count < kStatisticElements || sums.magnitude == 0) return;
    if (!has_statistics(t_.problem_case())) return;
    if (a7_.see(std::abs(sums.signed_error) / (u_ * sums.magnitude), limits.bias)) {
      a7_.where(place(at.sequence, -1, h, -1));
    }
  }

  // Compares in u of the norm of what is wanted, or of the noise where that is larger. Errors are
  // alike within a row, so with few rows they may be a few times their expected size.
  void see_l2(Rule& rule, const Sums& sums, double limit, double smallest, const HeadPlace& at,
              int64_t h) {
    const double luck =
        at.n.q >= 64 ? 1 : 1 + 3 / std::sqrt(std::max(1.0, static_cast<double>(at.n.q)));
    const double floor = smallest / (limit * u_);
    const double norm2 = std::max(sums.want2, luck * luck * sums.noise2) +
                         static_cast<double>(sums.count) * floor * floor;
    const double error = sums.error2 == 0 ? 0 : std::sqrt(sums.error2 / norm2) / u_;
    if (!rule.see(error, limit)) return;
    rule.where(place(at.sequence, -1, h, -1) +
               format(": norm {}, noise norm {} u", std::sqrt(sums.want2), std::sqrt(sums.noise2)));
  }

  void check_gradient(Gradient& g, const std::vector<double>& want,
                      const std::vector<double>& noise, const HeadPlace& at, int64_t h,
                      Scores scores) {
    if (scores.magnitude > kMostScoresBackward) return;
    const bool query_side = g.t == TensorId::kDq;
    const int64_t length = query_side ? at.n.q : at.n.k;
    const int64_t start = query_side ? at.q_start : at.k_start;
    std::vector<double> got(static_cast<std::size_t>(p_.extents(g.t).dim));
    Sums sums;
    for (int64_t s = 0; s < length; ++s) {
      t_.get_row(g.t, at.b, start + s, h, got.data());
      const int64_t first = packed_index(p_, g.t, at.b, start + s, h);
      for (std::size_t x = 0; x < got.size(); ++x) {
        const double w = want[first + x];
        const Kind kind = kind_of(p_.dtype, got[x], w);
        if (g.finite.see(kind == Kind::kWrong, 0.5)) {
          g.finite.where(place(at.sequence, s, h, x) + format(": got {}, want {}", got[x], w));
        }
        if (kind != Kind::kCompare) continue;
        add(sums, got[x] - w, w, noise[first + x]);
      }
    }
    if (sums.count == 0) return;
    const AccuracyLimits limits = limits_of(scores, at);
    see_l2(g.l2, sums, limits.gradient_l2, limits.smallest, at, h);
  }

  const Tensors& t_;
  const AttentionProblem& p_;
  const Oracle& want_;
  double u_;
  Rule finite_o_{"finite", TensorId::kO}, finite_lse_{"finite", "lse"},
      empty_{"empty", TensorId::kO};
  Rule a1_{"A1", TensorId::kO}, a2_{"A2", TensorId::kO}, a3_{"A3", "lse"}, a7_{"A7", TensorId::kO};
  Gradient dq_{TensorId::kDq}, dk_{TensorId::kDk}, dv_{TensorId::kDv};
};

}  // namespace

std::vector<RuleResult> check_accuracy(const Tensors& tensors, const Oracle& want,
                                       const Eager* eager, bool lse) {
  std::vector<RuleResult> out = Checker(tensors, want).run(lse);
  if (eager == nullptr || !has_statistics(tensors.problem_case())) return out;
  compare_with_eager(tensors, TensorId::kO, want.o, eager->o, out);
  if (!tensors.problem().backward()) return out;
  compare_with_eager(tensors, TensorId::kDq, want.dq, eager->dq, out);
  compare_with_eager(tensors, TensorId::kDk, want.dk, eager->dk, out);
  compare_with_eager(tensors, TensorId::kDv, want.dv, eager->dv, out);
  return out;
}

}  // namespace tilewise::harness
