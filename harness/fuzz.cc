#include "harness/fuzz.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/random.h"
#include "harness/data.h"

namespace tilewise::harness {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed, 0xF022) {}

  uint32_t word() { return random_.word(next_++); }
  // In [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(word() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(uint32_t n) { return word() % n == 0; }
  template <class T, std::size_t kCount>
  T of(const T (&values)[kCount]) {
    return values[word() % kCount];
  }
  // Each power of two as likely as the next.
  int64_t log_uniform(int64_t low, int64_t high) {
    const double x = (word() + 0.5) * 0x1p-32;
    const double value =
        std::exp2(x * std::log2(static_cast<double>(high + 1) / static_cast<double>(low))) *
        static_cast<double>(low);
    return std::clamp(static_cast<int64_t>(value), low, high);
  }

 private:
  PhiloxStream random_;
  uint64_t next_ = 0;
};

// Where a fault hides: nothing, one, block sizes of the kernels and their neighbours, primes.
int64_t random_length(Dice& dice, int64_t most) {
  static constexpr int64_t kTiles[] = {4, 8, 16, 24, 48, 64, 128, 256, 512, 1024, 2048};
  static constexpr int64_t kPrimes[] = {5, 7, 13, 31, 61, 97, 127, 131, 257, 383, 521, 1021};
  int64_t n = 0;
  switch (dice.between(0, 9)) {
    case 0:
    case 1:
      n = dice.between(0, 3);
      break;
    case 2:
    case 3:
    case 4:
      n = dice.of(kTiles) + dice.between(-2, 2);
      break;
    case 5:
      n = dice.of(kPrimes);
      break;
    default:
      n = dice.log_uniform(1, 700);
  }
  return std::clamp<int64_t>(n, 0, most);
}

int64_t random_head_dim(Dice& dice) {
  static constexpr int64_t kUsual[] = {8, 16, 32, 40, 64, 64, 72, 80, 96, 104, 128, 128, 192, 256};
  switch (dice.between(0, 9)) {
    case 0:
      return dice.between(1, 9);
    case 1:
    case 2:
      return std::clamp<int64_t>(dice.of(kUsual) + dice.between(-1, 1), 1, 512);
    case 3:
      return dice.log_uniform(1, 512);
    default:
      return dice.of(kUsual);
  }
}

void random_heads(Dice& dice, AttentionProblem& p) {
  static constexpr int64_t kGroups[] = {1, 1, 1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 12, 16};
  p.num_heads_kv = dice.one_in(2) ? 1 : dice.between(1, 4);
  p.num_heads = p.num_heads_kv * dice.of(kGroups);
  p.head_dim = random_head_dim(dice);
  p.head_dim_v = dice.one_in(4) ? random_head_dim(dice) : p.head_dim;
}

void random_lengths(Dice& dice, ProblemCase& c) {
  AttentionProblem& p = c.problem;
  const bool decode = dice.one_in(5);
  const auto query_length = [&](int64_t keys) {
    if (decode) return dice.between(1, 4);
    return dice.one_in(3) ? keys : random_length(dice, 2050);
  };
  p.varlen = dice.one_in(3);
  if (!p.varlen) {
    p.batch = dice.one_in(40) ? 0 : dice.between(1, 3);
    p.seqlen_k = decode ? dice.log_uniform(1, 6000) : random_length(dice, 2050);
    p.seqlen_q = query_length(p.seqlen_k);
    return;
  }
  p.batch = dice.one_in(40) ? 0 : dice.between(1, 6);
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t keys = decode ? dice.log_uniform(1, 3000) : random_length(dice, 700);
    c.lengths_k.push_back(static_cast<int32_t>(keys));
    c.lengths_q.push_back(static_cast<int32_t>(query_length(keys)));
  }
}

double work_of(const ProblemCase& c) {
  const AttentionProblem& p = c.problem;
  double pairs = static_cast<double>(p.batch * p.seqlen_q) * static_cast<double>(p.seqlen_k);
  for (std::size_t b = 0; b < c.lengths_q.size(); ++b) {
    pairs += static_cast<double>(c.lengths_q[b]) * c.lengths_k[b];
  }
  return pairs * static_cast<double>(p.num_heads) * static_cast<double>(p.head_dim + p.head_dim_v);
}

void finish_lengths(ProblemCase& c) {
  AttentionProblem& p = c.problem;
  if (!p.varlen) return;
  for (const int32_t n : c.lengths_q) {
    p.total_q += n;
    p.max_seqlen_q = std::max<int64_t>(p.max_seqlen_q, n);
  }
  for (const int32_t n : c.lengths_k) {
    p.total_k += n;
    p.max_seqlen_k = std::max<int64_t>(p.max_seqlen_k, n);
  }
}

// Heads and batch go first, then the longer side.
void bound_work(ProblemCase& c, double most) {
  AttentionProblem& p = c.problem;
  while (work_of(c) > most) {
    if (p.num_heads_kv > 1) {
      p.num_heads /= p.num_heads_kv;
      p.num_heads_kv = 1;
    } else if (p.varlen && p.batch > 2) {
      --p.batch;
      c.lengths_q.pop_back();
      c.lengths_k.pop_back();
    } else if (!p.varlen && p.batch > 1) {
      p.batch = 1;
    } else if (p.num_heads > 3) {
      p.num_heads = 3;
    } else if (p.varlen) {
      for (auto* lengths : {&c.lengths_q, &c.lengths_k}) {
        for (int32_t& n : *lengths) n -= (n + 2) / 3;
      }
    } else {
      int64_t& longer = p.seqlen_q > p.seqlen_k ? p.seqlen_q : p.seqlen_k;
      longer -= (longer + 2) / 3;
    }
  }
}

void random_mask(Dice& dice, AttentionProblem& p) {
  const int64_t reach = std::max<int64_t>(p.longest_k(), p.longest_q()) + 2;
  const auto bound = [&] {
    return static_cast<int32_t>(dice.one_in(2) ? dice.between(0, 3) : dice.between(0, reach));
  };
  switch (dice.between(0, 5)) {
    case 0:
    case 1:
      p.mask.window_right = 0;
      break;
    case 2:
      p.mask.window_left = dice.one_in(4) ? kUnbounded : bound();
      p.mask.window_right = dice.one_in(3) ? 0 : dice.one_in(4) ? kUnbounded : bound();
      break;
    default:
      break;
  }
  if (dice.one_in(3)) p.mask.align = Corner::kTopLeft;
}

void random_scores(Dice& dice, AttentionProblem& p) {
  static constexpr float kScales[] = {0.0f, -0.5f, -1e-8f, 1e-30f, 1.0f, 0.1f, -0.1f, 0.25f};
  static constexpr float kCaps[] = {0.5f, 5.0f, 10.0f, 30.0f, 50.0f};
  if (dice.one_in(4)) {
    p.has_softmax_scale = true;
    p.softmax_scale = dice.of(kScales);
  }
  if (dice.one_in(4)) p.softcap = dice.of(kCaps);
  p.alibi = dice.one_in(4);
}

// Any order of batch, token and head, with room between rows: what validate() calls disjoint.
Strides random_strides(Dice& dice, const Extents& e) {
  static constexpr int64_t kRooms[] = {1, 2, 3, 8, 16, 40};
  Strides s;
  struct Axis {
    int64_t extent;
    int64_t* stride;
  };
  Axis axes[] = {{e.heads, &s.head}, {e.seqlen, &s.seqlen}, {e.batch, &s.batch}};
  for (int i = 2; i > 0; --i) std::swap(axes[i], axes[dice.between(0, i)]);
  int64_t span = e.dim;
  for (const Axis& axis : axes) {
    const int64_t room = dice.one_in(2) ? 0 : dice.of(kRooms);
    *axis.stride = span + room;
    span = std::max<int64_t>(axis.extent, 1) * *axis.stride;
  }
  return s;
}

void random_memory(Dice& dice, ProblemCase& c) {
  AttentionProblem& p = c.problem;
  static constexpr Layout kLayouts[] = {Layout::kBshd, Layout::kBshd, Layout::kBhsd, Layout::kQkv};
  set_layout(p, dice.of(kLayouts));
  const bool strides = dice.one_in(3), offsets = dice.one_in(3);
  for (int i = 0; i < kNumTensors; ++i) {
    const auto t = static_cast<TensorId>(i);
    const bool zero_stride = t == TensorId::kDo ? dice.one_in(12) : dice.one_in(100);
    if (!p.backward() && t > TensorId::kO) continue;
    if (strides && dice.one_in(2)) p.strides[i] = random_strides(dice, p.extents(t));
    if (offsets && dice.one_in(2)) c.offsets[i] = dice.between(1, 15);
    if (zero_stride && t != TensorId::kO && !is_output(t, Direction::kBackward)) {
      if (dice.one_in(2)) p.strides[i].batch = 0;
      if (dice.one_in(2)) p.strides[i].seqlen = 0;
      if (dice.one_in(2)) p.strides[i].head = 0;
    }
    if (p.varlen) p.strides[i].batch = 0;
  }
}

void random_data(Dice& dice, ProblemCase& c) {
  const auto families = data_families();
  c.seed = dice.word();
  if (dice.one_in(3)) return;
  c.data = families[static_cast<std::size_t>(dice.word() % families.size())];
  // The contract says nothing on gradients of rows that are not finite.
  if (c.data == "nonfinite" && c.problem.backward()) c.data = "large";
}

}  // namespace

ProblemCase random_case(uint64_t seed, const FuzzOptions& options) {
  static constexpr DType kTypes[] = {DType::kFp32, DType::kFp32, DType::kFp16, DType::kFp16,
                                     DType::kBf16, DType::kBf16, DType::kFp64};
  Dice dice(seed);
  ProblemCase c;
  AttentionProblem& p = c.problem;
  p.dtype = dice.of(kTypes);
  if (dice.one_in(2)) p.direction = Direction::kBackward;
  p.deterministic = p.backward() && dice.one_in(3);
  random_heads(dice, p);
  random_lengths(dice, c);
  const double share = p.backward() ? 0.4 : 1;
  bound_work(c, options.max_work * share * (p.dtype == DType::kFp64 ? 0.2 : 1));
  finish_lengths(c);
  random_mask(dice, p);
  random_scores(dice, p);
  random_memory(dice, c);
  random_data(dice, c);
  return c;
}

}  // namespace tilewise::harness
