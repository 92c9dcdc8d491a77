// Prints the one-line text form of problems and cases. Grammar: docs/conventions.md.
#include <string>

#include "core/problem.h"

namespace tilewise {
namespace {

std::string join(const std::vector<int32_t>& values) {
  std::string out;
  for (const int32_t v : values) {
    if (!out.empty()) out += ',';
    out += to_text(static_cast<int64_t>(v));
  }
  return out;
}

std::string print_sizes(const AttentionProblem& p) {
  std::string out = p.varlen ? "" : format(" b{} sq{}", p.batch, p.seqlen_q);
  if (!p.varlen && p.seqlen_k != p.seqlen_q) out += format(" sk{}", p.seqlen_k);
  out += format(" h{}", p.num_heads);
  if (p.num_heads_kv != p.num_heads) out += format(" hk{}", p.num_heads_kv);
  out += format(" d{}", p.head_dim);
  if (p.head_dim_v != p.head_dim) out += format(" dv{}", p.head_dim_v);
  return out;
}

std::string print_scores(const AttentionProblem& p) {
  std::string out;
  const MaskSpec& m = p.mask;
  if (m.is_causal()) out += " causal";
  if (m.window_left != kUnbounded || (m.window_right != kUnbounded && !m.is_causal())) {
    out += format(" window:{},{}", m.window_left, m.window_right);
  }
  if (m.align == Corner::kTopLeft) out += " topleft";
  if (p.has_softmax_scale) out += format(" scale:{}", p.softmax_scale);
  if (p.softcap != 0.0f) out += format(" softcap:{}", p.softcap);
  if (p.alibi) out += " alibi";
  return out;
}

std::string print_memory(const AttentionProblem& p) {
  for (int layout = 0; layout < kNumLayouts; ++layout) {
    AttentionProblem laid_out = p;
    set_layout(laid_out, static_cast<Layout>(layout));
    if (laid_out.strides != p.strides) continue;
    return layout == 0 ? "" : format(" layout:{}", name_of(static_cast<Layout>(layout)));
  }
  std::string out;
  for (int t = 0; t < kNumTensors; ++t) {
    const TensorId id = static_cast<TensorId>(t);
    const Strides& s = p.strides[t];
    if (s == default_strides(p, id)) continue;
    out += format(" stride:{}={},{},{}", name_of(id), s.batch, s.seqlen, s.head);
  }
  return out;
}

std::string print_direction(const AttentionProblem& p) {
  std::string out = p.backward() ? " backward" : "";
  if (p.deterministic) out += " deterministic";
  return out;
}

std::string print_varlen_summary(const AttentionProblem& p) {
  if (!p.varlen) return "";
  return format(" varlen:b={}:total={},{}:max={},{}", p.batch, p.total_q, p.total_k, p.max_seqlen_q,
                p.max_seqlen_k);
}

}  // namespace

std::string print(const AttentionProblem& p) {
  return name_of(p.dtype) + print_sizes(p) + print_varlen_summary(p) + print_scores(p) +
         print_memory(p) + print_direction(p);
}

std::string print(const ProblemCase& c) {
  const AttentionProblem& p = c.problem;
  std::string out = name_of(p.dtype) + print_sizes(p);
  if (p.varlen && c.lengths_q.size() == static_cast<size_t>(p.batch)) {
    out += format(" varlen:q={}:k={}", join(c.lengths_q), join(c.lengths_k));
  } else {
    out += print_varlen_summary(p);
  }
  out += print_scores(p) + print_memory(p);
  for (int t = 0; t < kNumTensors; ++t) {
    if (c.offsets[t] != 0) {
      out += format(" offset:{}={}", name_of(static_cast<TensorId>(t)), c.offsets[t]);
    }
  }
  if (c.data != "normal") out += format(" data:{}", c.data);
  if (c.seed != 0) out += format(" seed:{}", c.seed);
  return out + print_direction(p);
}

}  // namespace tilewise
