// Random valid problems for the core tests: every field takes part, sizes stay small.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/problem.h"
#include "core/random.h"

namespace tilewise {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed, 99) {}
  int64_t below(int64_t limit) { return static_cast<int64_t>(random_.word(at_++)) % limit; }
  bool one_in(int64_t n) { return below(n) == 0; }
  float real() { return static_cast<float>(below(1 << 20)) * 0x1p-16f - 8.0f; }

 private:
  PhiloxStream random_;
  uint64_t at_ = 0;
};

inline void random_lengths(Dice& dice, ProblemCase& c) {
  AttentionProblem& p = c.problem;
  p.varlen = true;
  p.batch = dice.below(5);
  for (int64_t i = 0; i < p.batch; ++i) {
    c.lengths_q.push_back(static_cast<int32_t>(dice.one_in(4) ? 0 : dice.below(40)));
    c.lengths_k.push_back(static_cast<int32_t>(dice.one_in(4) ? 0 : dice.below(40)));
    p.total_q += c.lengths_q.back();
    p.total_k += c.lengths_k.back();
    p.max_seqlen_q = std::max<int64_t>(p.max_seqlen_q, c.lengths_q.back());
    p.max_seqlen_k = std::max<int64_t>(p.max_seqlen_k, c.lengths_k.back());
  }
}

inline void random_memory(Dice& dice, ProblemCase& c) {
  AttentionProblem& p = c.problem;
  set_layout(p, static_cast<Layout>(dice.below(3)));
  for (int t = 0; t < kNumTensors; ++t) {
    if (dice.one_in(6)) {  // padding between rows, in an order of its own
      const Extents e = p.extents(static_cast<TensorId>(t));
      Strides s;
      s.head = e.dim + dice.below(9);
      s.seqlen = s.head * std::max<int64_t>(e.heads, 1) + dice.below(9);
      s.batch = p.varlen ? 0 : s.seqlen * std::max<int64_t>(e.seqlen, 1) + dice.below(9);
      p.strides[t] = s;
    }
    if (dice.one_in(6)) c.offsets[t] = dice.below(20);
  }
}

// The same for the same seed.
inline ProblemCase random_problem(uint64_t seed) {
  Dice dice(seed);
  ProblemCase c;
  AttentionProblem& p = c.problem;
  p.direction = dice.one_in(2) ? Direction::kBackward : Direction::kForward;
  p.deterministic = p.backward() && dice.one_in(2);
  p.dtype = static_cast<DType>(dice.below(4));
  p.num_heads_kv = 1 + dice.below(4);
  p.num_heads = p.num_heads_kv * (1 + dice.below(4));
  p.head_dim = 1 + dice.below(300);
  p.head_dim_v = dice.one_in(2) ? p.head_dim : 1 + dice.below(300);
  if (dice.one_in(3)) {
    random_lengths(dice, c);
  } else {
    p.batch = dice.below(4);
    p.seqlen_q = dice.below(100);
    p.seqlen_k = dice.one_in(2) ? p.seqlen_q : dice.below(100);
  }
  if (dice.one_in(2)) p.mask.window_left = static_cast<int32_t>(dice.below(50)) - 1;
  if (dice.one_in(2)) p.mask.window_right = static_cast<int32_t>(dice.below(50)) - 1;
  if (dice.one_in(3)) p.mask.window_right = 0;
  if (dice.one_in(3)) p.mask.align = Corner::kTopLeft;
  if (dice.one_in(3)) {
    p.has_softmax_scale = true;
    p.softmax_scale = dice.one_in(5) ? 0.0f : dice.real();
  }
  if (dice.one_in(3)) p.softcap = 1.0f + static_cast<float>(dice.below(1000)) / 7.0f;
  p.alibi = dice.one_in(4);
  random_memory(dice, c);
  if (dice.one_in(3)) c.data = "needle";
  if (dice.one_in(2)) c.seed = static_cast<uint64_t>(dice.below(1 << 30)) << (dice.below(2) * 33);
  return c;
}

}  // namespace tilewise
