#include "core/problem.h"

#include <cmath>

namespace tilewise {

double AttentionProblem::scale() const {
  if (has_softmax_scale) return softmax_scale;
  const double exact = 1.0 / std::sqrt(static_cast<double>(head_dim));
  return dtype == DType::kFp64 ? exact : static_cast<float>(exact);
}

Extents AttentionProblem::extents(TensorId t) const {
  const bool query_side =
      t == TensorId::kQ || t == TensorId::kO || t == TensorId::kDo || t == TensorId::kDq;
  const bool value_dim =
      t == TensorId::kV || t == TensorId::kO || t == TensorId::kDo || t == TensorId::kDv;
  Extents e;
  e.batch = varlen ? 1 : batch;
  e.seqlen = query_side ? (varlen ? total_q : seqlen_q) : (varlen ? total_k : seqlen_k);
  e.heads = query_side ? num_heads : num_heads_kv;
  e.dim = value_dim ? head_dim_v : head_dim;
  return e;
}

namespace {

// Visible (query, key) pairs of one sequence.
double visible_pairs(const MaskSpec& mask, Lengths n) {
  if (mask.is_full()) return static_cast<double>(n.q) * static_cast<double>(n.k);
  double pairs = 0;
  for (int64_t q = 0; q < n.q; ++q) {
    const Span keys = mask.keys_of(q, n);
    if (keys.end > keys.begin) pairs += static_cast<double>(keys.end - keys.begin);
  }
  return pairs;
}

}  // namespace

double AttentionProblem::flops() const {
  const double pairs = visible_pairs(mask, {longest_q(), longest_k()}) *
                       static_cast<double>(batch) * static_cast<double>(num_heads);
  const double d = static_cast<double>(head_dim), dv = static_cast<double>(head_dim_v);
  // Forward: S = QK^T, O = PV. Backward: S, dK = dS^T Q, dQ = dS K; dP = dO V^T, dV = P^T dO.
  return backward() ? 2 * pairs * (3 * d + 2 * dv) : 2 * pairs * (d + dv);
}

namespace {

// Sizes may be anything here: validate() has not seen them. Too large stays too large, and
// validate() then says so.
int64_t times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}
int64_t plus(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

}  // namespace

Strides default_strides(const AttentionProblem& p, TensorId t, Layout layout) {
  const Extents e = p.extents(t);
  Strides s;
  const bool packed = layout == Layout::kQkv && t != TensorId::kO && t != TensorId::kDo;
  if (packed) {
    s.head = e.dim;
    s.seqlen = plus(times(plus(p.num_heads, p.num_heads_kv), p.head_dim),
                    times(p.num_heads_kv, p.head_dim_v));
    s.batch = times(e.seqlen, s.seqlen);
  } else if (layout == Layout::kBhsd) {
    s.seqlen = e.dim;
    s.head = times(e.seqlen, e.dim);
    s.batch = times(e.heads, s.head);
  } else {
    s.head = e.dim;
    s.seqlen = times(e.heads, e.dim);
    s.batch = times(e.seqlen, s.seqlen);
  }
  if (p.varlen) s.batch = 0;
  return s;
}

void set_layout(AttentionProblem& p, Layout layout) {
  for (int t = 0; t < kNumTensors; ++t) {
    p.strides[t] = default_strides(p, static_cast<TensorId>(t), layout);
  }
}

uint64_t hash_of(const AttentionProblem& p) {
  uint64_t hash = 0x9E3779B97F4A7C15u;
  const auto mix = [&hash](uint64_t value) {  // the finaliser of SplitMix64, chained
    uint64_t x = hash ^ value;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    hash = (x ^ (x >> 31)) + 0x9E3779B97F4A7C15u;
  };
  const auto mix_float = [&mix](float x) {
    mix(__builtin_bit_cast(uint32_t, x == 0.0f ? 0.0f : x));
  };
  mix(static_cast<uint64_t>(p.direction));
  mix(p.deterministic);
  mix(static_cast<uint64_t>(p.dtype));
  for (const int64_t size :
       {p.batch, p.seqlen_q, p.seqlen_k, p.num_heads, p.num_heads_kv, p.head_dim, p.head_dim_v,
        p.total_q, p.total_k, p.max_seqlen_q, p.max_seqlen_k}) {
    mix(static_cast<uint64_t>(size));
  }
  mix(static_cast<uint32_t>(p.mask.window_left));
  mix(static_cast<uint32_t>(p.mask.window_right));
  mix(static_cast<uint64_t>(p.mask.align));
  mix(p.has_softmax_scale);
  mix_float(p.softmax_scale);
  mix_float(p.softcap);
  mix(p.alibi);
  mix(p.varlen);
  for (const Strides& s : p.strides) {
    mix(static_cast<uint64_t>(s.batch));
    mix(static_cast<uint64_t>(s.seqlen));
    mix(static_cast<uint64_t>(s.head));
  }
  return hash;
}

}  // namespace tilewise
