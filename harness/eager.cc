// Three-step attention whose intermediate matrices have the type of the problem.
#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/oracle.h"
#include "harness/rows.h"

namespace tilewise::harness {
namespace {

class HeadEager {
 public:
  HeadEager(const Tensors& t, const HeadPlace& at, Eager& out)
      : t_(t), p_(t.problem()), at_(at), out_(out), keys_(load_keys<double>(t, at)) {
    for (auto* v : {&weight_, &derivative_, &ds_}) v->resize(static_cast<std::size_t>(at.n.k));
    if (!p_.backward()) return;
    dk_.resize(keys_.k.size());
    dv_.resize(keys_.v.size());
  }

  void run() {
    for (int64_t head = at_.head_kv * p_.group(); head < (at_.head_kv + 1) * p_.group(); ++head) {
      for (int64_t i = 0; i < at_.n.q; ++i) {
        span_ = visible_keys(p_.mask, i, at_.n);
        q_ = load_row<double>(t_, TensorId::kQ, at_, i, head);
        weights(head, i);
        output(head, i);
        if (p_.backward()) gradients(head, i);
      }
    }
    if (!p_.backward()) return;
    for (int64_t j = 0; j < at_.n.k; ++j) {
      store(out_.dk, TensorId::kDk, at_.k_start + j, at_.head_kv, dk_.data() + j * p_.head_dim);
      store(out_.dv, TensorId::kDv, at_.k_start + j, at_.head_kv, dv_.data() + j * p_.head_dim_v);
    }
  }

 private:
  double rounded(double x) const { return round_to(p_.dtype, x); }

  void store(std::vector<double>& to, TensorId t, int64_t token, int64_t head, const double* row) {
    const int64_t at = packed_index(p_, t, at_.b, token, head);
    for (int64_t x = 0; x < p_.extents(t).dim; ++x) to[at + x] = rounded(row[x]);
  }

  // Scores, then P, in weight_.
  void weights(int64_t head, int64_t i) {
    std::fill(weight_.begin(), weight_.end(), 0.0);
    add_rows(span_.end - span_.begin, p_.head_dim, q_.data(), keys_.k_t.data() + span_.begin,
             at_.n.k, weight_.data() + span_.begin);
    double most = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t j = span_.begin; j < span_.end; ++j) {
      double bias = 0;
      const auto s = final_score(t_, at_, head, i, j, rounded(p_.scale() * weight_[j]), &bias);
      weight_[j] = rounded(rounded(s.value - bias) + bias);
      derivative_[j] = s.derivative;
      most = std::max(most, weight_[j]);
    }
    for (int64_t j = span_.begin; j < span_.end; ++j) {
      weight_[j] = std::exp(weight_[j] - most);
      sum += weight_[j];
    }
    for (int64_t j = span_.begin; j < span_.end; ++j) weight_[j] = rounded(weight_[j] / sum);
  }

  void output(int64_t head, int64_t i) {
    const int64_t dv = p_.head_dim_v;
    std::vector<double> o(static_cast<std::size_t>(dv));
    add_rows(dv, span_.end - span_.begin, weight_.data() + span_.begin,
             keys_.v.data() + span_.begin * dv, dv, o.data());
    store(out_.o, TensorId::kO, at_.q_start + i, head, o.data());
  }

  void gradients(int64_t head, int64_t i) {
    const int64_t d = p_.head_dim, dv = p_.head_dim_v, first = span_.begin;
    const int64_t count = span_.end - first;
    const std::vector<double> d_o = load_row<double>(t_, TensorId::kDo, at_, i, head);
    std::fill(ds_.begin(), ds_.end(), 0.0);
    add_rows(count, dv, d_o.data(), keys_.v_t.data() + first, at_.n.k, ds_.data() + first);
    double delta = 0;
    for (int64_t j = first; j < span_.end; ++j) {
      ds_[j] = rounded(ds_[j]);
      delta += weight_[j] * ds_[j];
    }
    for (int64_t j = first; j < span_.end; ++j) {
      ds_[j] = p_.scale() * rounded(rounded(weight_[j] * (ds_[j] - delta)) * derivative_[j]);
    }
    std::vector<double> dq(static_cast<std::size_t>(d));
    add_rows(d, count, ds_.data() + first, keys_.k.data() + first * d, d, dq.data());
    store(out_.dq, TensorId::kDq, at_.q_start + i, head, dq.data());
    add_outer(d, count, ds_.data() + first, q_.data(), dk_.data() + first * d, d);
    add_outer(dv, count, weight_.data() + first, d_o.data(), dv_.data() + first * dv, dv);
  }

  const Tensors& t_;
  const AttentionProblem& p_;
  const HeadPlace& at_;
  Eager& out_;
  Keys<double> keys_;
  Span span_;                                     // keys that the row sees
  std::vector<double> q_;                         // (head_dim)
  std::vector<double> weight_, derivative_, ds_;  // (n.k)
  std::vector<double> dk_, dv_;                   // like keys_.k, keys_.v
};

}  // namespace

Eager eager(const Tensors& inputs) {
  const AttentionProblem& p = inputs.problem();
  const auto sized = [&p](std::vector<double>& v, TensorId t) {
    const Extents e = p.extents(t);
    v.resize(static_cast<std::size_t>(e.batch * e.seqlen * e.heads * e.dim));
  };
  Eager out;
  sized(out.o, TensorId::kO);
  if (p.backward()) {
    sized(out.dq, TensorId::kDq);
    sized(out.dk, TensorId::kDk);
    sized(out.dv, TensorId::kDv);
  }
  for (const HeadPlace& at : head_places(inputs.problem_case())) {
    HeadEager(inputs, at, out).run();
  }
  return out;
}

}  // namespace tilewise::harness
