// cpu.reference: attention as the textbook writes it, row by row, in fp64. Any problem, any size,
// slow. Every other kernel is judged against results of this kind; it is the last in the registry.
#include <cmath>
#include <limits>

#include "core/registry.h"
#include "cpu/entries.h"
#include "cpu/fp64.h"
#include "cpu/parallel.h"

namespace tilewise::cpu {
namespace {

// One sequence and one query head (or one kv head) of it.
struct Place {
  int64_t batch = 0;  // index into batch strides; 0 when varlen
  int64_t slopes_batch = 0;
  int64_t q_start = 0, k_start = 0;
  Lengths n;
};

template <class Args>
Place place_of(const AttentionProblem& p, const Args& args, int64_t batch) {
  if (!p.varlen) return {batch, batch, 0, 0, {p.seqlen_q, p.seqlen_k}};
  const int64_t q = args.cu_seqlens_q[batch], k = args.cu_seqlens_k[batch];
  return {0, batch, q, k, {args.cu_seqlens_q[batch + 1] - q, args.cu_seqlens_k[batch + 1] - k}};
}

int64_t element(const AttentionProblem& p, TensorId t, const Place& at, int64_t row, int64_t head) {
  const Strides& s = p.stride(t);
  const bool query_side = p.extents(t).heads == p.num_heads && t != TensorId::kK &&
                          t != TensorId::kV && t != TensorId::kDk && t != TensorId::kDv;
  const int64_t start = query_side ? at.q_start : at.k_start;
  return at.batch * s.batch + (start + row) * s.seqlen + head * s.head;
}

int64_t lse_element(const AttentionProblem& p, const Place& at, int64_t row, int64_t head) {
  if (p.varlen) return head * p.total_q + at.q_start + row;
  return (at.batch * p.num_heads + head) * p.seqlen_q + row;
}

// The final score of (query i, visible key j) and, for the backward, its derivative with respect to
// softmax_scale * q.k: 1, or 1 - tanh^2 under softcap.
struct Score {
  double value, derivative;
};

template <class Args>
Score score(const AttentionProblem& p, const Args& args, const Place& at, int64_t head, int64_t i,
            int64_t j) {
  const int64_t q = element(p, TensorId::kQ, at, i, head);
  const int64_t k = element(p, TensorId::kK, at, j, head / p.group());
  double dot = 0.0;
  for (int64_t x = 0; x < p.head_dim; ++x) {
    dot += load_double(args.q, q + x, p.dtype) * load_double(args.k, k + x, p.dtype);
  }
  // Sums are fp32 unless the tensors are fp64: what overflows there is infinite here too.
  if (p.dtype != DType::kFp64 && std::fabs(dot) > std::numeric_limits<float>::max()) {
    dot = std::copysign(std::numeric_limits<double>::infinity(), dot);
  }
  Score s = {p.scale() * dot, 1.0};
  if (p.softcap > 0.0f) {
    const double x = s.value / p.softcap;
    // 1 - tanh^2(x), without its cancellation where the cap saturates.
    const double e = std::exp(-2.0 * std::fabs(x));
    s = {p.softcap * std::tanh(x), 4.0 * e / ((1.0 + e) * (1.0 + e))};
  }
  if (p.alibi) {
    const double slope = args.alibi_slopes[at.slopes_batch * args.alibi_batch_stride + head];
    s.value -= slope * std::abs(static_cast<double>(i + p.mask.diagonal(at.n) - j));
  }
  return s;
}

// scores: (n.k), o_row: (head_dim_v)
void forward_row(const AttentionProblem& p, const ForwardArgs& args, const Place& at, int64_t head,
                 int64_t i, double* scores, double* o_row) {
  const Span keys = p.mask.keys_of(i, at.n);
  double row_max = DoubleOps::negative_infinity();
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    scores[j] = score(p, args, at, head, i, j).value * 1.4426950408889634;
    if (scores[j] > row_max || std::isnan(scores[j])) row_max = scores[j];  // NaN stays
  }
  DoubleSoftmax softmax;
  softmax.update(row_max);
  for (int64_t x = 0; x < p.head_dim_v; ++x) o_row[x] = 0.0;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (scores[j] == DoubleOps::negative_infinity()) continue;  // weight 0
    const double weight = std::exp2(scores[j] - softmax.shift());
    softmax.sum += weight;
    const int64_t v = element(p, TensorId::kV, at, j, head / p.group());
    for (int64_t x = 0; x < p.head_dim_v; ++x)
      o_row[x] += weight * load_double(args.v, v + x, p.dtype);
  }
  double lse = 0.0;
  const double inverse = softmax.finalize(&lse);
  const int64_t o = element(p, TensorId::kO, at, i, head);
  for (int64_t x = 0; x < p.head_dim_v; ++x)
    store_double(args.o, o + x, p.dtype, o_row[x] * inverse);
  if (args.lse != nullptr) args.lse[lse_element(p, at, i, head)] = static_cast<float>(lse);
}

// Scratch of one task, in doubles.
struct Scratch {
  double* p;       // (n.k)
  double* dq_row;  // (head_dim); of the forward: o_row (head_dim_v)
  double* dk;      // (n.k, head_dim), backward only
  double* dv;      // (n.k, head_dim_v), backward only
};

// P of one row from the lse that the forward returned. Where that lse is the row's own, rounded to
// fp32, the unrounded one is used; it may also be one over more keys (split or ring attention).
template <class Args>
void probabilities(const AttentionProblem& p, const Args& args, const Place& at, int64_t head,
                   int64_t i, Span keys, Scratch& s) {
  const double infinity = std::numeric_limits<double>::infinity();
  double row_max = -infinity, sum = 0.0;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    s.p[j] = score(p, args, at, head, i, j).value;
    if (s.p[j] > row_max || std::isnan(s.p[j])) row_max = s.p[j];
  }
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (s.p[j] != -infinity) sum += std::exp(s.p[j] - row_max);
  }
  double lse = args.lse[lse_element(p, at, i, head)];
  const double own = row_max + std::log(sum);
  if (static_cast<double>(static_cast<float>(own)) == lse) lse = own;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    s.p[j] = lse == -infinity || s.p[j] == -infinity ? 0.0 : std::exp(s.p[j] - lse);
  }
}

void backward_row(const AttentionProblem& p, const BackwardArgs& args, const Place& at,
                  int64_t head, int64_t i, Scratch& s) {
  const Span keys = p.mask.keys_of(i, at.n);
  probabilities(p, args, at, head, i, keys, s);
  const int64_t q = element(p, TensorId::kQ, at, i, head);
  const int64_t o = element(p, TensorId::kO, at, i, head);
  const int64_t d_o = element(p, TensorId::kDo, at, i, head);
  double delta = 0.0;
  for (int64_t x = 0; x < p.head_dim_v; ++x) {
    delta += load_double(args.do_, d_o + x, p.dtype) * load_double(args.o, o + x, p.dtype);
  }
  for (int64_t x = 0; x < p.head_dim; ++x) s.dq_row[x] = 0.0;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    if (s.p[j] == 0.0) continue;
    const int64_t k = element(p, TensorId::kK, at, j, head / p.group());
    const int64_t v = element(p, TensorId::kV, at, j, head / p.group());
    double dp = 0.0;
    for (int64_t x = 0; x < p.head_dim_v; ++x) {
      const double d_o_x = load_double(args.do_, d_o + x, p.dtype);
      dp += d_o_x * load_double(args.v, v + x, p.dtype);
      s.dv[j * p.head_dim_v + x] += s.p[j] * d_o_x;
    }
    const double ds = s.p[j] * (dp - delta) * score(p, args, at, head, i, j).derivative * p.scale();
    for (int64_t x = 0; x < p.head_dim; ++x) {
      s.dq_row[x] += ds * load_double(args.k, k + x, p.dtype);
      s.dk[j * p.head_dim + x] += ds * load_double(args.q, q + x, p.dtype);
    }
  }
  const int64_t dq = element(p, TensorId::kDq, at, i, head);
  for (int64_t x = 0; x < p.head_dim; ++x) store_double(args.dq, dq + x, p.dtype, s.dq_row[x]);
}

// All query heads of one kv head: dk and dv are summed over them.
void backward_head(const AttentionProblem& p, const BackwardArgs& args, const Place& at,
                   int64_t head_kv, Scratch& s) {
  for (int64_t x = 0; x < at.n.k * p.head_dim; ++x) s.dk[x] = 0.0;
  for (int64_t x = 0; x < at.n.k * p.head_dim_v; ++x) s.dv[x] = 0.0;
  for (int64_t head = head_kv * p.group(); head < (head_kv + 1) * p.group(); ++head) {
    for (int64_t i = 0; i < at.n.q; ++i) backward_row(p, args, at, head, i, s);
  }
  for (int64_t j = 0; j < at.n.k; ++j) {
    const int64_t dk = element(p, TensorId::kDk, at, j, head_kv);
    const int64_t dv = element(p, TensorId::kDv, at, j, head_kv);
    for (int64_t x = 0; x < p.head_dim; ++x) {
      store_double(args.dk, dk + x, p.dtype, s.dk[j * p.head_dim + x]);
    }
    for (int64_t x = 0; x < p.head_dim_v; ++x) {
      store_double(args.dv, dv + x, p.dtype, s.dv[j * p.head_dim_v + x]);
    }
  }
}

int64_t scratch_doubles(const AttentionProblem& p) {
  const int64_t row = p.head_dim > p.head_dim_v ? p.head_dim : p.head_dim_v;
  const int64_t sums = p.backward() ? p.longest_k() * (p.head_dim + p.head_dim_v) : 0;
  return (p.longest_k() + row + sums + 7) / 8 * 8;  // whole cache lines
}

Scratch scratch_of(const Plan& plan, void* workspace, int worker) {
  const AttentionProblem& p = plan.problem;
  double* base = static_cast<double*>(workspace) + worker * scratch_doubles(p);
  Scratch s{};
  s.p = base;
  s.dq_row = s.p + p.longest_k();
  s.dk = s.dq_row + (p.head_dim > p.head_dim_v ? p.head_dim : p.head_dim_v);
  s.dv = s.dk + p.longest_k() * p.head_dim;
  return s;
}

Answer supports(const AttentionProblem&, const Device& device) {
  if (device.kind != DeviceKind::kCpu) return no("tensors are not on the CPU");
  return yes();
}

Status shape(Plan& plan, const PlanOptions&) {
  plan.shape.num_tasks = plan.problem.batch * plan.problem.num_heads;
  const __int128 bytes =
      static_cast<__int128>(scratch_doubles(plan.problem)) * 8 * plan.shape.threads;
  if (bytes > INT64_MAX) {
    return {StatusCode::kOverflow, format("workspace for seqlen_k {} does not fit into 64 bits",
                                          plan.problem.longest_k())};
  }
  plan.workspace_bytes = static_cast<int64_t>(bytes);
  return {};
}

Status forward(const Plan& plan, const ForwardArgs& args) {
  const AttentionProblem& p = plan.problem;
  parallel_for(p.batch * p.num_heads, plan.shape.threads, args.pool, [&](int64_t task, int worker) {
    Scratch s = scratch_of(plan, args.workspace, worker);
    const Place at = place_of(p, args, task / p.num_heads);
    for (int64_t i = 0; i < at.n.q; ++i) {
      forward_row(p, args, at, task % p.num_heads, i, s.p, s.dq_row);
    }
  });
  return {};
}

Status backward(const Plan& plan, const BackwardArgs& args) {
  const AttentionProblem& p = plan.problem;
  const int64_t tasks = p.batch * p.num_heads_kv;
  parallel_for(tasks, plan.shape.threads, args.pool, [&](int64_t task, int worker) {
    Scratch s = scratch_of(plan, args.workspace, worker);
    const Place at = place_of(p, args, task / p.num_heads_kv);
    backward_head(p, args, at, task % p.num_heads_kv, s);
  });
  return {};
}

}  // namespace

const KernelEntry* reference_entry() {
  static constexpr KernelEntry kEntry = {
      .name = "cpu.reference",
      .summary = "naive loops, fp64 sums: the oracle of the tests",
      .supports = supports,
      .shape = shape,
      .forward = forward,
      .backward = backward,
  };
  return &kEntry;
}

}  // namespace tilewise::cpu
