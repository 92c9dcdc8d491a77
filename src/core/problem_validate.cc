// validate(): every rule on a problem that needs no pointer. Messages name the field and its value.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/problem.h"

namespace tilewise {
namespace {

constexpr int64_t kMaxLength = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxHeads = 1 << 20;
constexpr int64_t kMaxHeadDim = 1 << 16;

Status check_range(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid_argument("{} is {}; it must be in [{}, {}]", field, value, low, high);
}

Status check_sizes(const AttentionProblem& p) {
  struct Rule {
    const char* field;
    int64_t value, low, high;
  };
  const Rule rules[] = {
      {"batch", p.batch, 0, kMaxLength},
      {"num_heads", p.num_heads, 1, kMaxHeads},
      {"num_heads_kv", p.num_heads_kv, 1, kMaxHeads},
      {"head_dim", p.head_dim, 1, kMaxHeadDim},
      {"head_dim_v", p.head_dim_v, 1, kMaxHeadDim},
      {"seqlen_q", p.seqlen_q, 0, p.varlen ? 0 : kMaxLength},
      {"seqlen_k", p.seqlen_k, 0, p.varlen ? 0 : kMaxLength},
      {"total_q", p.total_q, 0, p.varlen ? kMaxLength : 0},
      {"total_k", p.total_k, 0, p.varlen ? kMaxLength : 0},
      {"max_seqlen_q", p.max_seqlen_q, 0, p.total_q},
      {"max_seqlen_k", p.max_seqlen_k, 0, p.total_k},
  };
  for (const Rule& rule : rules) {
    if (Status s = check_range(rule.field, rule.value, rule.low, rule.high); !s.ok()) return s;
  }
  if (p.num_heads % p.num_heads_kv != 0) {
    return invalid_argument("num_heads is {}; it must be a multiple of num_heads_kv, {}",
                            p.num_heads, p.num_heads_kv);
  }
  return {};
}

// The batch must hold the total: batch * max >= total, or some row would belong to no sequence.
Status check_varlen(const AttentionProblem& p) {
  if (!p.varlen) return {};
  if (p.batch * p.max_seqlen_q < p.total_q) {
    return invalid_argument("total_q is {}; {} sequences of at most max_seqlen_q {} hold {}",
                            p.total_q, p.batch, p.max_seqlen_q, p.batch * p.max_seqlen_q);
  }
  if (p.batch * p.max_seqlen_k < p.total_k) {
    return invalid_argument("total_k is {}; {} sequences of at most max_seqlen_k {} hold {}",
                            p.total_k, p.batch, p.max_seqlen_k, p.batch * p.max_seqlen_k);
  }
  return {};
}

Status check_scores(const AttentionProblem& p) {
  if (p.mask.window_left < kUnbounded) {
    return invalid_argument("window_left is {}; it must be >= 0, or -1 for unbounded",
                            p.mask.window_left);
  }
  if (p.mask.window_right < kUnbounded) {
    return invalid_argument("window_right is {}; it must be >= 0, or -1 for unbounded",
                            p.mask.window_right);
  }
  if (p.mask.align != Corner::kBottomRight && p.mask.align != Corner::kTopLeft) {
    return invalid_argument("align is {}; it must be 0 (bottom right) or 1 (top left)",
                            static_cast<int>(p.mask.align));
  }
  if (p.has_softmax_scale && !std::isfinite(p.softmax_scale)) {
    return invalid_argument("softmax_scale is {}; it must be finite", p.softmax_scale);
  }
  if (!std::isfinite(p.softcap) || p.softcap < 0.0f) {
    return invalid_argument("softcap is {}; it must be finite and >= 0 (0 is off)", p.softcap);
  }
  return {};
}

// One dimension of a tensor as seen by the overlap rule.
struct Axis {
  int64_t extent, stride;
};

// Rows of an output may not overlap: each stride must step over all that the smaller ones span.
Status check_output_strides(TensorId t, const Extents& e, const Strides& s) {
  Axis axes[] = {{e.batch, s.batch}, {e.seqlen, s.seqlen}, {e.heads, s.head}};
  std::sort(axes, axes + 3, [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  int64_t span = e.dim;
  for (const Axis& axis : axes) {
    if (axis.extent <= 1) continue;
    if (axis.stride < span) {
      return invalid_argument(
          "strides of {} are ({}, {}, {}): rows of an output overlap "
          "(a stride of {} is less than the {} elements it must step over)",
          name_of(t), s.batch, s.seqlen, s.head, axis.stride, span);
    }
    span += (axis.extent - 1) * axis.stride;  // check_strides has ruled out overflow
  }
  return {};
}

Status check_strides(const AttentionProblem& p, TensorId t) {
  const Extents e = p.extents(t);
  const Strides& s = p.stride(t);
  const Axis axes[] = {{e.batch, s.batch}, {e.seqlen, s.seqlen}, {e.heads, s.head}};
  const char* names[] = {"batch", "seqlen", "head"};
  int64_t reach = e.dim * size_of(p.dtype);  // bytes from the first element to past the last
  for (int i = 0; i < 3; ++i) {
    if (axes[i].stride < 0) {
      return invalid_argument("{} stride of {} is {}; it must be >= 0", names[i], name_of(t),
                              axes[i].stride);
    }
    int64_t bytes = 0;
    if (axes[i].extent > 1 &&
        (__builtin_mul_overflow(axes[i].extent - 1, axes[i].stride, &bytes) ||
         __builtin_mul_overflow(bytes, static_cast<int64_t>(size_of(p.dtype)), &bytes) ||
         __builtin_add_overflow(reach, bytes, &reach))) {
      return {StatusCode::kOverflow,
              format("{} of {}: extent {} times stride {} does not fit into 64 bits", names[i],
                     name_of(t), axes[i].extent, axes[i].stride)};
    }
  }
  const bool empty = e.batch == 0 || e.seqlen == 0;
  if (is_output(t, p.direction) && !empty) return check_output_strides(t, e, s);
  return {};
}

}  // namespace

Status validate(const AttentionProblem& p) {
  if (p.direction != Direction::kForward && p.direction != Direction::kBackward) {
    return invalid_argument("direction is {}; it must be 0 (forward) or 1 (backward)",
                            static_cast<int>(p.direction));
  }
  if (p.dtype < DType::kFp16 || p.dtype > DType::kFp64) {
    return invalid_argument("dtype is {}; it must be 0 (fp16), 1 (bf16), 2 (fp32) or 3 (fp64)",
                            static_cast<int>(p.dtype));
  }
  if (Status s = check_sizes(p); !s.ok()) return s;
  if (Status s = check_varlen(p); !s.ok()) return s;
  if (Status s = check_scores(p); !s.ok()) return s;
  const TensorId last = p.backward() ? TensorId::kDv : TensorId::kO;
  for (TensorId t = TensorId::kQ; t <= last; t = static_cast<TensorId>(static_cast<int>(t) + 1)) {
    if (Status s = check_strides(p, t); !s.ok()) return s;
  }
  int64_t rows = 0;
  if (__builtin_mul_overflow(p.varlen ? p.total_q : p.batch * p.seqlen_q, p.num_heads * 4, &rows)) {
    return {StatusCode::kOverflow,
            format("lse of batch {}, seqlen_q {}, num_heads {} does not fit into 64 bits", p.batch,
                   p.seqlen_q, p.num_heads)};
  }
  return {};
}

}  // namespace tilewise
