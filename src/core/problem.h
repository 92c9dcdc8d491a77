// AttentionProblem: what to compute, as plain data without pointers. Comparable, hashable,
// printable and parseable; the one-line text form is used by tests, bench, CLI, logs and errors.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/mask.h"
#include "core/status.h"

namespace tilewise {

enum class Direction : int32_t { kForward = 0, kBackward = 1 };

enum class TensorId : int32_t { kQ, kK, kV, kO, kDo, kDq, kDk, kDv };
constexpr int kNumTensors = 8;
constexpr const char* name_of(TensorId t) {
  constexpr const char* kNames[kNumTensors] = {"q", "k", "v", "o", "do", "dq", "dk", "dv"};
  return kNames[static_cast<int>(t)];
}
constexpr bool is_output(TensorId t, Direction direction) {
  return direction == Direction::kForward ? t == TensorId::kO : t >= TensorId::kDq;
}

// Element strides of a (batch, seqlen, head, dim) view; dim has stride 1. A varlen tensor is
// (total, head, dim): its batch stride is 0 and unused.
struct Strides {
  int64_t batch = 0, seqlen = 0, head = 0;
  bool operator==(const Strides&) const = default;
};

struct Extents {
  int64_t batch = 0, seqlen = 0, heads = 0, dim = 0;
};

// Named memory layouts; each is only a choice of strides.
enum class Layout : int32_t {
  kBshd,  // (batch, seqlen, heads, dim), the default
  kBhsd,  // (batch, heads, seqlen, dim)
  kQkv,   // q, k, v (and dq, dk, dv) interleaved per token: (batch, seqlen, h*d + hk*d + hk*dv)
};
constexpr int kNumLayouts = 3;
constexpr const char* name_of(Layout layout) {
  return layout == Layout::kBshd ? "bshd" : layout == Layout::kBhsd ? "bhsd" : "qkv";
}

struct AttentionProblem {
  Direction direction = Direction::kForward;
  bool deterministic = false;  // backward: dq bit-equal on reruns
  DType dtype = DType::kFp32;

  int64_t batch = 0;
  int64_t seqlen_q = 0, seqlen_k = 0;  // 0 when varlen
  int64_t num_heads = 0, num_heads_kv = 0;
  int64_t head_dim = 0, head_dim_v = 0;

  MaskSpec mask;
  bool has_softmax_scale = false;  // false: 1/sqrt(head_dim)
  float softmax_scale = 0.0f;
  float softcap = 0.0f;  // 0: off
  bool alibi = false;

  bool varlen = false;  // lengths come with the call, as cu_seqlens
  int64_t total_q = 0, total_k = 0;
  int64_t max_seqlen_q = 0, max_seqlen_k = 0;

  std::array<Strides, kNumTensors> strides{};

  bool operator==(const AttentionProblem&) const = default;

  bool backward() const { return direction == Direction::kBackward; }
  int64_t group() const { return num_heads / num_heads_kv; }  // query heads per kv head
  double scale() const;               // exact for fp64; a float otherwise, as the kernels use it
  Extents extents(TensorId t) const;  // of a varlen tensor: batch 1, seqlen the total
  const Strides& stride(TensorId t) const { return strides[static_cast<int>(t)]; }
  Strides& stride(TensorId t) { return strides[static_cast<int>(t)]; }
  int64_t longest_q() const { return varlen ? max_seqlen_q : seqlen_q; }
  int64_t longest_k() const { return varlen ? max_seqlen_k : seqlen_k; }
  // Query rows over all sequences and heads: the size of lse.
  int64_t num_rows() const { return (varlen ? total_q : batch * seqlen_q) * num_heads; }
  // Multiply-adds times two: 4 * d per visible (query, key) pair and head, 2.5 times that backward.
  // Of a varlen problem, an upper bound from the longest lengths.
  double flops() const;
};

// The strides of `layout` for the sizes of p.
Strides default_strides(const AttentionProblem& p, TensorId t, Layout layout = Layout::kBshd);
void set_layout(AttentionProblem& p, Layout layout);

// Checks every field that can be checked without pointers. O(1).
Status validate(const AttentionProblem& p);

uint64_t hash_of(const AttentionProblem& p);

// One case of a test, a benchmark or the command line: a problem, and what the text line says about
// its memory and data beyond the problem.
struct ProblemCase {
  AttentionProblem problem;
  std::vector<int32_t> lengths_q, lengths_k;   // varlen only
  std::array<int64_t, kNumTensors> offsets{};  // elements added to each tensor's base pointer
  std::string data = "normal";                 // data family
  uint64_t seed = 0;

  bool operator==(const ProblemCase&) const = default;
};

// The grammar of docs/conventions.md. Parsing validates; errors quote the token.
Result<ProblemCase> parse_case(std::string_view line);
Result<AttentionProblem> parse_problem(std::string_view line);  // refuses the words of a case
std::string print(const ProblemCase& c);
// A varlen problem alone has no lengths; it prints as varlen:b=<batch>:total=<q>,<k>:max=<q>,<k>,
// which parse_problem accepts.
std::string print(const AttentionProblem& p);

}  // namespace tilewise
