#include <algorithm>

#include "harness/fuzz.h"

namespace tilewise::harness {
namespace {

constexpr int kMostCalls = 400;

void count_tokens(ProblemCase& c) {
  AttentionProblem& p = c.problem;
  p.total_q = p.total_k = p.max_seqlen_q = p.max_seqlen_k = 0;
  for (const int32_t n : c.lengths_q) {
    p.total_q += n;
    p.max_seqlen_q = std::max<int64_t>(p.max_seqlen_q, n);
  }
  for (const int32_t n : c.lengths_k) {
    p.total_k += n;
    p.max_seqlen_k = std::max<int64_t>(p.max_seqlen_k, n);
  }
}

// Applies `change` to a copy; strides that were those of a layout follow the new sizes.
template <class F>
ProblemCase changed(const ProblemCase& c, const F& change) {
  ProblemCase out = c;
  change(out);
  if (out.problem.varlen) count_tokens(out);
  for (int i = 0; i < kNumTensors; ++i) {
    const auto t = static_cast<TensorId>(i);
    if (out.problem.strides[i] != c.problem.strides[i]) continue;
    for (const Layout layout : {Layout::kBshd, Layout::kBhsd, Layout::kQkv}) {
      if (c.problem.strides[i] != default_strides(c.problem, t, layout)) continue;
      out.problem.strides[i] = default_strides(out.problem, t, layout);
      break;
    }
  }
  return out;
}

class Candidates {
 public:
  explicit Candidates(const ProblemCase& c) : c_(c) {}

  std::vector<ProblemCase> all() {
    sequences();
    options();
    sizes();
    memory();
    return std::move(list_);
  }

 private:
  template <class F>
  void add(const F& change) {
    ProblemCase candidate = changed(c_, change);
    if (candidate != c_ && validate(candidate.problem).ok()) list_.push_back(std::move(candidate));
  }
  // Every candidate is simpler than the case, so that none can follow each other in a circle.
  template <class Get>
  void shrink(int64_t value, int64_t least, const Get& get) {
    for (const int64_t smaller : {least, value / 2, value - value / 4, value - 1}) {
      if (smaller < least || smaller >= value) continue;
      add([&](ProblemCase& c) { get(c) = static_cast<std::decay_t<decltype(get(c))>>(smaller); });
    }
  }

  void sequences() {
    if (!c_.problem.varlen) {
      shrink(c_.problem.batch, 1, [](ProblemCase& c) -> int64_t& { return c.problem.batch; });
      return;
    }
    for (std::size_t b = 0; b < c_.lengths_q.size(); ++b) {
      add([b](ProblemCase& c) {  // that sequence alone, dense
        AttentionProblem& p = c.problem;
        p.varlen = false;
        p.total_q = p.total_k = p.max_seqlen_q = p.max_seqlen_k = 0;
        p.batch = 1;
        p.seqlen_q = c.lengths_q[b];
        p.seqlen_k = c.lengths_k[b];
        c.lengths_q.clear();
        c.lengths_k.clear();
        for (int t = 0; t < kNumTensors; ++t) {
          p.strides[t] = default_strides(p, static_cast<TensorId>(t));
        }
      });
      add([b](ProblemCase& c) {  // without it
        c.lengths_q.erase(c.lengths_q.begin() + static_cast<std::ptrdiff_t>(b));
        c.lengths_k.erase(c.lengths_k.begin() + static_cast<std::ptrdiff_t>(b));
        --c.problem.batch;
      });
    }
  }

  void options() {
    add([](ProblemCase& c) {
      c.problem.direction = Direction::kForward;
      c.problem.deterministic = false;
    });
    add([](ProblemCase& c) { c.problem.deterministic = false; });
    add([](ProblemCase& c) { c.problem.alibi = false; });
    add([](ProblemCase& c) { c.problem.softcap = 0; });
    add([](ProblemCase& c) {
      c.problem.has_softmax_scale = false;
      c.problem.softmax_scale = 0;
    });
    add([](ProblemCase& c) { c.problem.mask = MaskSpec(); });
    add([](ProblemCase& c) { c.problem.mask.align = Corner::kBottomRight; });
    add([](ProblemCase& c) { c.problem.mask.window_left = kUnbounded; });
    add([](ProblemCase& c) { c.problem.mask.window_right = kUnbounded; });
    if (c_.problem.mask.window_right > 0) {
      add([](ProblemCase& c) { c.problem.mask.window_right = 0; });
    }
    add([](ProblemCase& c) { c.data = "normal"; });
    add([](ProblemCase& c) { c.problem.dtype = DType::kFp32; });
    add([](ProblemCase& c) { c.seed = 0; });
  }

  void sizes() {
    AttentionProblem& p = c_.problem;
    add([](ProblemCase& c) { c.problem.num_heads = c.problem.num_heads_kv; });
    add([&p](ProblemCase& c) {
      c.problem.num_heads_kv = 1;
      c.problem.num_heads = p.group();
    });
    if (p.head_dim_v > p.head_dim) {
      add([](ProblemCase& c) { c.problem.head_dim_v = c.problem.head_dim; });
    }
    for (std::size_t b = 0; b < c_.lengths_q.size(); ++b) {
      shrink(c_.lengths_q[b], 0, [b](ProblemCase& c) -> int32_t& { return c.lengths_q[b]; });
      shrink(c_.lengths_k[b], 0, [b](ProblemCase& c) -> int32_t& { return c.lengths_k[b]; });
    }
    if (!p.varlen) {
      shrink(p.seqlen_q, 0, [](ProblemCase& c) -> int64_t& { return c.problem.seqlen_q; });
      shrink(p.seqlen_k, 0, [](ProblemCase& c) -> int64_t& { return c.problem.seqlen_k; });
    }
    shrink(p.head_dim, 1, [](ProblemCase& c) -> int64_t& { return c.problem.head_dim; });
    shrink(p.head_dim_v, 1, [](ProblemCase& c) -> int64_t& { return c.problem.head_dim_v; });
  }

  void memory() {
    add([](ProblemCase& c) {
      set_layout(c.problem, Layout::kBshd);
      c.offsets = {};
    });
    for (int t = 0; t < kNumTensors; ++t) {
      add([t](ProblemCase& c) {
        c.problem.strides[t] = default_strides(c.problem, static_cast<TensorId>(t));
      });
      add([t](ProblemCase& c) { c.offsets[t] = 0; });
    }
  }

  ProblemCase c_;
  std::vector<ProblemCase> list_;
};

}  // namespace

ProblemCase minimise(ProblemCase c, const std::function<bool(const ProblemCase&)>& fails) {
  int calls = 0;
  for (bool progress = true; progress;) {
    progress = false;
    for (const ProblemCase& candidate : Candidates(c).all()) {
      if (++calls > kMostCalls) return c;
      if (!fails(candidate)) continue;
      c = candidate;
      progress = true;
      break;
    }
  }
  return c;
}

}  // namespace tilewise::harness
