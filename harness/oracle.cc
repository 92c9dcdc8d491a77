#include "harness/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/rows.h"

namespace tilewise::harness {
namespace {

constexpr double kFp32Max = std::numeric_limits<float>::max();

constexpr DType sum_type(DType t) { return t == DType::kFp64 ? t : DType::kFp32; }

// The oracle of one kv head and the query heads that share it.
template <class Real>
class HeadOracle {
 public:
  HeadOracle(const Tensors& t, const HeadPlace& at, Oracle& out)
      : t_(t),
        p_(t.problem()),
        at_(at),
        out_(out),
        tanh_error_(4 * unit_roundoff(sum_type(p_.dtype)) / unit_roundoff(p_.dtype)),
        keys_(load_keys<Real>(t, at)) {
    k_squared_ = squared(keys_.k);
    v_squared_ = squared(keys_.v);
    const auto count = static_cast<std::size_t>(at.n.k);
    for (auto* v : {&score_, &derivative_, &size_, &trace_, &p_row_, &dp_, &ds_, &noise_,
                    &slope_noise_, &p_squared_}) {
      v->resize(count);
    }
    if (!p_.backward()) return;
    dk_.resize(keys_.k.size());
    dk_noise_.resize(keys_.k.size());
    dv_.resize(keys_.v.size());
    dv_noise_.resize(keys_.v.size());
  }

  static std::vector<Real> squared(std::vector<Real> values) {
    for (Real& x : values) x *= x;
    return values;
  }

  void run() {
    for (int64_t head = at_.head_kv * p_.group(); head < (at_.head_kv + 1) * p_.group(); ++head) {
      for (int64_t i = 0; i < at_.n.q; ++i) run_row(head, i);
    }
    if (p_.backward()) store_key_gradients();
  }

 private:
  void run_row(int64_t head, int64_t i) {
    span_ = visible_keys(p_.mask, i, at_.n);
    q_ = load_row<Real>(t_, TensorId::kQ, at_, i, head);
    scores(head, i);
    const Real lse = softmax();
    const int64_t row = lse_index(p_, at_.b, at_.q_start + i, head);
    out_.lse[row] = static_cast<double>(lse);
    out_.score_magnitude[row] = most_visible(size_);
    out_.score_error[row] = most_visible(trace_);
    const std::vector<Real> o = output(head, i);
    if (p_.backward()) gradients(head, i, o);
  }

  // NaN if one is.
  double most_visible(const std::vector<Real>& values) const {
    Real most = 0;
    for (int64_t j = span_.begin; j < span_.end; ++j) {
      if (!(values[j] <= most)) most = values[j];
    }
    return static_cast<double>(most);
  }

  // Of the visible keys: score_, derivative_, size_ (the magnitudes in a score) and trace_ (its
  // expected error in u).
  void scores(int64_t head, int64_t i) {
    const int64_t count = span_.end - span_.begin;
    std::fill(score_.begin(), score_.end(), Real{0});
    std::fill(size_.begin(), size_.end(), Real{0});
    std::fill(trace_.begin(), trace_.end(), Real{0});
    std::vector<Real> abs_q(q_);
    for (Real& x : abs_q) x = std::abs(x);
    add_rows_traced(count, p_.head_dim, q_.data(), keys_.k_t.data() + span_.begin, at_.n.k,
                    score_.data() + span_.begin, trace_.data() + span_.begin);
    add_rows(count, p_.head_dim, abs_q.data(), keys_.abs_k_t.data() + span_.begin, at_.n.k,
             size_.data() + span_.begin);
    const Real scale = p_.scale();
    for (int64_t j = span_.begin; j < span_.end; ++j) {
      Real bias = 0;
      const Real scaled = limited(scale * limited(score_[j]));
      const FinalScore<Real> s = final_score(t_, at_, head, i, j, scaled, &bias);
      score_[j] = s.value;
      derivative_[j] = s.derivative;
      size_[j] = std::abs(scale) * size_[j] + std::abs(bias);
      // A rounding is off by u/sqrt(3) of its result; scale, softcap and exponent round again.
      trace_[j] = std::sqrt(scale * scale * trace_[j] / 3 + 4 * s.value * s.value + bias * bias);
    }
  }

  // What fp32 cannot hold is infinite.
  Real limited(Real x) const {
    if (p_.dtype == DType::kFp64 || !(std::abs(x) > kFp32Max)) return x;
    return std::copysign(std::numeric_limits<Real>::infinity(), x);
  }

  // p_row_ of the visible keys; returns the lse.
  Real softmax() {
    constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
    Real most = -kInfinity;
    bool bad = false;
    for (int64_t j = span_.begin; j < span_.end; ++j) {
      bad = bad || std::isnan(score_[j]) || score_[j] == kInfinity;
      most = std::max(most, score_[j]);
    }
    if (bad) {
      std::fill(p_row_.begin(), p_row_.end(), std::numeric_limits<Real>::quiet_NaN());
      return std::numeric_limits<Real>::quiet_NaN();
    }
    if (most == -kInfinity) {
      std::fill(p_row_.begin(), p_row_.end(), Real{0});
      return -kInfinity;
    }
    Real sum = 0;
    for (int64_t j = span_.begin; j < span_.end; ++j) {
      p_row_[j] = std::exp(score_[j] - most);
      sum += p_row_[j];
    }
    for (int64_t j = span_.begin; j < span_.end; ++j) p_row_[j] /= sum;
    return most + std::log(sum);
  }

  std::vector<Real> output(int64_t head, int64_t i) {
    const int64_t dv = p_.head_dim_v, count = span_.end - span_.begin;
    std::vector<Real> o(static_cast<std::size_t>(dv)), magnitude(o), squares(o);
    add_rows(dv, count, p_row_.data() + span_.begin, keys_.v.data() + span_.begin * dv, dv,
             o.data());
    add_rows(dv, count, p_row_.data() + span_.begin, keys_.abs_v.data() + span_.begin * dv, dv,
             magnitude.data());
    for (int64_t j = span_.begin; j < span_.end; ++j) p_squared_[j] = p_row_[j] * p_row_[j];
    add_rows(dv, count, p_squared_.data() + span_.begin, v_squared_.data() + span_.begin * dv, dv,
             squares.data());
    const int64_t at = packed_index(p_, TensorId::kO, at_.b, at_.q_start + i, head);
    for (int64_t x = 0; x < dv; ++x) {
      out_.o_noise[at + x] = static_cast<double>(std::sqrt(squares[x]));
      out_.o[at + x] = std::isfinite(o[x]) ? static_cast<double>(o[x]) : NAN;
      out_.o_magnitude[at + x] = static_cast<double>(magnitude[x]);
    }
    return o;
  }

  void gradients(int64_t head, int64_t i, const std::vector<Real>& o) {
    const int64_t d = p_.head_dim, dv = p_.head_dim_v, first = span_.begin;
    const int64_t count = span_.end - first;
    const std::vector<Real> d_o = load_row<Real>(t_, TensorId::kDo, at_, i, head);
    std::fill(dp_.begin(), dp_.end(), Real{0});
    add_rows(count, dv, d_o.data(), keys_.v_t.data() + first, at_.n.k, dp_.data() + first);
    Real delta = 0, delta_noise = 0;
    for (int64_t x = 0; x < dv; ++x) {
      delta += d_o[x] * o[x];
      delta_noise += d_o[x] * o[x] * d_o[x] * o[x];
    }
    delta_noise = std::sqrt(delta_noise);
    const Real scale = p_.scale();
    for (int64_t j = first; j < span_.end; ++j) {
      const Real slope = scale * p_row_[j];
      ds_[j] = slope * derivative_[j] * (dp_[j] - delta);
      noise_[j] = slope * derivative_[j] * delta_noise;
      slope_noise_[j] = p_.softcap > 0 ? slope * (dp_[j] - delta) * tanh_error_ : 0;
    }
    std::vector<Real> dq(static_cast<std::size_t>(d));
    add_rows(d, count, ds_.data() + first, keys_.k.data() + first * d, d, dq.data());
    const int64_t at = packed_index(p_, TensorId::kDq, at_.b, at_.q_start + i, head);
    for (int64_t x = 0; x < d; ++x) out_.dq[at + x] = static_cast<double>(dq[x]);
    add_outer(d, count, ds_.data() + first, q_.data(), dk_.data() + first * d, d);
    add_outer(dv, count, p_row_.data() + first, d_o.data(), dv_.data() + first * dv, dv);
    gradient_noise(at, d_o);
  }

  // The error of delta is one number for the row; those of tanh and of other rows are independent.
  // Where the terms of a sum are larger, their rounding is what counts.
  void gradient_noise(int64_t at, const std::vector<Real>& d_o) {
    const int64_t d = p_.head_dim, dv = p_.head_dim_v, first = span_.begin;
    const int64_t count = span_.end - first;
    std::vector<Real> common(static_cast<std::size_t>(d)), tanh_noise(common), terms(common);
    add_rows(d, count, noise_.data() + first, keys_.k.data() + first * d, d, common.data());
    for (int64_t j = first; j < span_.end; ++j) {
      slope_noise_[j] *= slope_noise_[j];
      ds_[j] *= ds_[j];
      noise_[j] = std::max(noise_[j] * noise_[j] + slope_noise_[j], ds_[j]);
    }
    const Real* k_squared = k_squared_.data() + first * d;
    if (p_.softcap > 0) {
      add_rows(d, count, slope_noise_.data() + first, k_squared, d, tanh_noise.data());
    }
    add_rows(d, count, ds_.data() + first, k_squared, d, terms.data());
    for (int64_t x = 0; x < d; ++x) {
      const Real noise = std::max(common[x] * common[x] + tanh_noise[x], terms[x]);
      out_.dq_noise[at + x] = static_cast<double>(std::sqrt(noise));
    }
    const std::vector<Real> d_o_squared = squared(d_o);
    add_outer(dv, count, p_squared_.data() + first, d_o_squared.data(),
              dv_noise_.data() + first * dv, dv);
    const std::vector<Real> q_squared = squared(q_);
    add_outer(d, count, noise_.data() + first, q_squared.data(), dk_noise_.data() + first * d, d);
  }

  void store_key_gradients() {
    for (int64_t j = 0; j < at_.n.k; ++j) {
      const int64_t dk = packed_index(p_, TensorId::kDk, at_.b, at_.k_start + j, at_.head_kv);
      for (int64_t x = 0; x < p_.head_dim; ++x) {
        out_.dk[dk + x] = static_cast<double>(dk_[j * p_.head_dim + x]);
        out_.dk_noise[dk + x] = static_cast<double>(std::sqrt(dk_noise_[j * p_.head_dim + x]));
      }
      const int64_t dv = packed_index(p_, TensorId::kDv, at_.b, at_.k_start + j, at_.head_kv);
      for (int64_t x = 0; x < p_.head_dim_v; ++x) {
        out_.dv[dv + x] = static_cast<double>(dv_[j * p_.head_dim_v + x]);
        out_.dv_noise[dv + x] = static_cast<double>(std::sqrt(dv_noise_[j * p_.head_dim_v + x]));
      }
    }
  }

  const Tensors& t_;
  const AttentionProblem& p_;
  const HeadPlace& at_;
  Oracle& out_;
  double tanh_error_;  // of 1 - tanh^2, absolute, in units of u
  Keys<Real> keys_;
  std::vector<Real> k_squared_, v_squared_;  // like keys_.k, keys_.v
  Span span_;                                // keys that the row sees
  std::vector<Real> q_;                      // (head_dim)
  std::vector<Real> score_, derivative_, size_, trace_, p_row_, p_squared_, dp_, ds_, noise_,
      slope_noise_;                                  // (n.k)
  std::vector<Real> dk_, dk_noise_, dv_, dv_noise_;  // like keys_.k, k, v, v
};

int64_t elements(const AttentionProblem& p, TensorId t) {
  const Extents e = p.extents(t);
  return e.batch * e.seqlen * e.heads * e.dim;
}

}  // namespace

int64_t packed_index(const AttentionProblem& p, TensorId t, int64_t b, int64_t s, int64_t h) {
  const Extents e = p.extents(t);
  return ((b * e.seqlen + s) * e.heads + h) * e.dim;
}

int64_t lse_index(const AttentionProblem& p, int64_t b, int64_t s, int64_t h) {
  return p.varlen ? h * p.total_q + s : (b * p.num_heads + h) * p.seqlen_q + s;
}

Oracle oracle(const Tensors& inputs) {
  const AttentionProblem& p = inputs.problem();
  Oracle out;
  const auto sized = [&p](std::vector<double>& v, TensorId t) {
    v.resize(static_cast<std::size_t>(elements(p, t)));
  };
  sized(out.o, TensorId::kO);
  sized(out.o_magnitude, TensorId::kO);
  sized(out.o_noise, TensorId::kO);
  out.lse.resize(static_cast<std::size_t>(p.num_rows()));
  out.score_magnitude.resize(out.lse.size());
  out.score_error.resize(out.lse.size());
  if (p.backward()) {
    sized(out.dq, TensorId::kDq);
    sized(out.dq_noise, TensorId::kDq);
    sized(out.dk, TensorId::kDk);
    sized(out.dk_noise, TensorId::kDk);
    sized(out.dv, TensorId::kDv);
    sized(out.dv_noise, TensorId::kDv);
  }
  for (const HeadPlace& at : head_places(inputs.problem_case())) {
    if (p.dtype == DType::kFp64) {
      HeadOracle<long double>(inputs, at, out).run();
    } else {
      HeadOracle<double>(inputs, at, out).run();
    }
  }
  return out;
}

}  // namespace tilewise::harness
