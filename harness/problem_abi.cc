#include "harness/problem_abi.h"

namespace tilewise::harness {
namespace {

tilewise_strides to_abi(const Strides& s) { return {s.batch, s.seqlen, s.head, 1}; }
Strides from_abi(const tilewise_strides& s) { return {s.batch, s.seqlen, s.head}; }

bool contiguous(const tilewise_strides& s) {
  return s.batch == 0 && s.seqlen == 0 && s.head == 0 && s.dim == 0;
}

// The strides of both, each with the tensor it belongs to.
template <class Abi, class F>
void for_each_stride(Abi& abi, const F& f) {
  f(TensorId::kQ, abi.q);
  f(TensorId::kK, abi.k);
  f(TensorId::kV, abi.v);
  f(TensorId::kO, abi.o);
  f(TensorId::kDo, abi.do_);
  f(TensorId::kDq, abi.dq);
  f(TensorId::kDk, abi.dk);
  f(TensorId::kDv, abi.dv);
}

}  // namespace

tilewise_problem to_abi(const AttentionProblem& p) {
  tilewise_problem abi = TILEWISE_PROBLEM_INIT;
  abi.direction = static_cast<int32_t>(p.direction);
  abi.dtype = static_cast<int32_t>(p.dtype);
  abi.batch = p.batch;
  abi.seqlen_q = p.seqlen_q;
  abi.seqlen_k = p.seqlen_k;
  abi.num_heads = p.num_heads;
  abi.num_heads_kv = p.num_heads_kv;
  abi.head_dim = p.head_dim;
  abi.head_dim_v = p.head_dim_v;
  abi.causal = p.mask.is_causal();
  abi.window_left = p.mask.window_left;
  abi.window_right = p.mask.window_right;
  abi.align = static_cast<int32_t>(p.mask.align);
  abi.has_softmax_scale = p.has_softmax_scale;
  abi.softmax_scale = p.softmax_scale;
  abi.softcap = p.softcap;
  abi.alibi = p.alibi;
  abi.deterministic = p.deterministic;
  abi.varlen = p.varlen;
  abi.total_q = p.total_q;
  abi.total_k = p.total_k;
  abi.max_seqlen_q = p.max_seqlen_q;
  abi.max_seqlen_k = p.max_seqlen_k;
  for_each_stride(abi, [&](TensorId t, tilewise_strides& s) { s = to_abi(p.stride(t)); });
  return abi;
}

AttentionProblem from_abi(const tilewise_problem& abi) {
  AttentionProblem p;
  p.direction = static_cast<Direction>(abi.direction);
  p.dtype = static_cast<DType>(abi.dtype);
  p.batch = abi.batch;
  p.seqlen_q = abi.seqlen_q;
  p.seqlen_k = abi.seqlen_k;
  p.num_heads = abi.num_heads;
  p.num_heads_kv = abi.num_heads_kv;
  p.head_dim = abi.head_dim;
  p.head_dim_v = abi.head_dim_v;
  p.mask.window_left = abi.window_left;
  p.mask.window_right = abi.causal != 0 ? 0 : abi.window_right;
  p.mask.align = static_cast<Corner>(abi.align);
  p.has_softmax_scale = abi.has_softmax_scale != 0;
  p.softmax_scale = abi.softmax_scale;
  p.softcap = abi.softcap;
  p.alibi = abi.alibi != 0;
  p.deterministic = abi.deterministic != 0;
  p.varlen = abi.varlen != 0;
  p.total_q = abi.total_q;
  p.total_k = abi.total_k;
  p.max_seqlen_q = abi.max_seqlen_q;
  p.max_seqlen_k = abi.max_seqlen_k;
  for_each_stride(abi, [&](TensorId t, const tilewise_strides& s) {
    p.stride(t) = contiguous(s) ? default_strides(p, t) : from_abi(s);
  });
  return p;
}

Lengths lengths_of(const ProblemCase& c, int64_t sequence) {
  if (!c.problem.varlen) return {c.problem.seqlen_q, c.problem.seqlen_k};
  return {c.lengths_q[sequence], c.lengths_k[sequence]};
}

double flops_of(const ProblemCase& c) {
  if (!c.problem.varlen) return c.problem.flops();
  double sum = 0;
  for (int64_t b = 0; b < c.problem.batch; ++b) {
    AttentionProblem one = c.problem;
    one.varlen = false;
    one.batch = 1;
    one.seqlen_q = c.lengths_q[b];
    one.seqlen_k = c.lengths_k[b];
    sum += one.flops();
  }
  return sum;
}

}  // namespace tilewise::harness
