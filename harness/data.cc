#include "harness/data.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "core/random.h"
#include "harness/problem_abi.h"

namespace tilewise::harness {
namespace {

// Streams of random words: one per tensor, and these.
constexpr uint64_t kNeedleStream = 100, kChannelStream = 101, kSlopeStream = 102,
                   kNonfiniteStream = 103;

double unit_interval(uint32_t word) { return (word + 0.5) * 0x1p-32; }

// Box-Muller: four words give four values.
void normal_block(const PhiloxStream& random, uint64_t block, double* out) {
  for (int i = 0; i < 4; i += 2) {
    const double radius = std::sqrt(-2 * std::log(unit_interval(random.word(4 * block + i))));
    const double angle = 6.283185307179586 * unit_interval(random.word(4 * block + i + 1));
    out[i] = radius * std::cos(angle);
    out[i + 1] = radius * std::sin(angle);
  }
}

// A row of a tensor: key or query `position` of its sequence.
struct Row {
  TensorId t;
  int64_t b, s, h;   // as Tensors::get() counts
  int64_t sequence;  // batch element, also when varlen
  int64_t position;
  Lengths n;
  int64_t dim, first;  // first: index of its first element in the whole tensor
  int64_t heads;
  bool is_key() const { return t == TensorId::kK; }
  int64_t head_index() const { return sequence * heads + h; }
};

struct Source {
  const AttentionProblem& problem;
  uint64_t seed;

  uint32_t word(uint64_t stream, int64_t index) const {
    return PhiloxStream(seed, stream).word(static_cast<uint64_t>(index));
  }
  void normals(const Row& row, int64_t first, double factor, double* out) const {
    const PhiloxStream random(seed, static_cast<uint64_t>(row.t));
    double block[4];
    for (int64_t x = 0; x < row.dim; ++x) {
      const auto index = static_cast<uint64_t>(first + x);
      if (x == 0 || index % 4 == 0) normal_block(random, index / 4, block);
      out[x] = factor * block[index % 4];
    }
  }
  void normals(const Row& row, double factor, double* out) const {
    normals(row, row.first, factor, out);
  }
  // What k must hold where q is 1 for that score; bounded so that every type holds it.
  double key_for_score(double score) const {
    const double scale = problem.scale();
    if (scale == 0) return std::copysign(1.0, score);
    return std::clamp(score / scale, -0x1p14, 0x1p14);
  }
};

void fill_normal(const Source& from, const Row& row, double* out) { from.normals(row, 1, out); }

void fill_uniform(const Source& from, const Row& row, double* out) {
  if (row.t == TensorId::kDo) return fill_normal(from, row, out);
  for (int64_t x = 0; x < row.dim; ++x) {
    out[x] = unit_interval(from.word(static_cast<uint64_t>(row.t), row.first + x));
  }
}

void fill_large(const Source& from, const Row& row, double* out) {
  from.normals(row, row.t == TensorId::kQ ? 5 : row.t == TensorId::kK ? 3 : 1, out);
}

int64_t needle_position(const Source& from, const Row& row) {
  if (row.n.k == 0) return 0;
  const uint32_t word = from.word(kNeedleStream, row.head_index());
  const int64_t random = word / 16 % static_cast<uint64_t>(row.n.k);
  const std::array<int64_t, 9> places = {0, 63, 64, 65, 127, 128, 129, row.n.k - 1, random};
  const int64_t place = places[word % 16 % places.size()];
  return place < row.n.k ? place : row.n.k - 1;
}

void fill_needle(const Source& from, const Row& row, double* out) {
  fill_normal(from, row, out);
  if (row.t == TensorId::kQ) out[0] = 4;
  if (!row.is_key()) return;
  const bool hot = row.position == needle_position(from, row);
  out[0] = hot ? from.key_for_score(20) / 4 : 0.25 * out[0];
}

void fill_equal(const Source& from, const Row& row, double* out) {
  from.normals(row, row.is_key() ? row.head_index() * row.dim : row.first, 1, out);
}

void fill_zero(const Source& from, const Row& row, double* out) {
  from.normals(row, row.t == TensorId::kQ ? 0 : 1, out);
}

void fill_around(const Source& from, const Row& row, double score, double* out) {
  const bool in_score = row.t == TensorId::kQ || row.is_key();
  from.normals(row, in_score ? 0.1 : 1, out);
  if (row.t == TensorId::kQ) out[0] = 1;
  if (row.is_key()) out[0] = from.key_for_score(score) * (1 + 0.01 * out[0]);
}
void fill_low(const Source& from, const Row& row, double* out) {
  fill_around(from, row, -120, out);
}
void fill_high(const Source& from, const Row& row, double* out) {
  fill_around(from, row, 120, out);
}

// Powers of two, so that every sum is exact in fp32; each third key is far below the others.
void fill_huge(const Source& from, const Row& row, double* out) {
  if (row.t != TensorId::kQ && !row.is_key()) return fill_normal(from, row, out);
  const int64_t kv_head = row.is_key() ? row.h : row.h / from.problem.group();
  const bool negative = (kv_head + static_cast<int64_t>(from.seed)) % 2 == 0;
  double value = negative ? 0x1p8 : 0x1p15;
  if (row.is_key() && negative) value = row.position % 3 == 1 ? -0x1p9 : -0x1p8;
  if (row.is_key() && !negative && row.position % 3 == 1) value = 0x1p14;
  std::fill(out, out + row.dim, value);
}

void fill_onehot(const Source& from, const Row& row, double* out) {
  fill_normal(from, row, out);
  if (row.t != TensorId::kV) return;
  for (int64_t x = 0; x < row.dim; ++x) out[x] = row.position % row.dim == x ? 1 : 0;
}

void fill_structured(const Source& from, const Row& row, double* out) {
  fill_normal(from, row, out);
  if (row.t == TensorId::kQ) out[0] = 2;
  if (row.t == TensorId::kV && row.position == 0) {
    for (int64_t x = 0; x < row.dim; ++x) out[x] *= 0.1;
  }
  if (!row.is_key()) return;
  const int64_t always = from.word(kChannelStream, row.h) % static_cast<uint64_t>(row.dim);
  for (int64_t x = 1; x < row.dim; ++x) {
    const uint32_t word = from.word(kChannelStream, (row.h + 1) * 65536 + x);
    if (word % 100 == 0 || (x == always && row.dim >= 16)) out[x] *= 50;
  }
  if (row.position == 0) out[0] = from.key_for_score(10) / 2;
}

void fill_subnormal(const Source& from, const Row& row, double* out) {
  if (row.t == TensorId::kDo) return fill_normal(from, row, out);
  const DType type = from.problem.dtype;
  const double smallest_normal = type == DType::kFp16   ? 0x1p-14
                                 : type == DType::kFp64 ? 0x1p-1022
                                                        : 0x1p-126;
  for (int64_t x = 0; x < row.dim; ++x) {
    const uint32_t word = from.word(static_cast<uint64_t>(row.t), row.first + x);
    out[x] = (2 * unit_interval(word) - 1) * smallest_normal;
  }
}

// Exponents such that scores are plain and gradients stay inside the type: dk reaches q * v * do.
void fill_largest(const Source& from, const Row& row, double* out) {
  struct Exponents {
    int q, v, d_o;
  };
  const DType type = from.problem.dtype;
  const Exponents e = type == DType::kFp16   ? Exponents{8, 15, -14}
                      : type == DType::kFp64 ? Exponents{100, 200, -150}
                                             : Exponents{40, 80, -60};
  const int exponent = row.t == TensorId::kQ   ? e.q
                       : row.t == TensorId::kK ? -e.q
                       : row.t == TensorId::kV ? e.v
                                               : e.d_o;
  from.normals(row, std::ldexp(1.0, exponent), out);
  if (row.t != TensorId::kV) return;
  for (int64_t x = 0; x < row.dim; ++x) {
    const double most = type == DType::kFp16 ? largest_finite(type) : std::ldexp(2.0, e.v);
    out[x] = std::clamp(out[x] * 2, -most, most);
  }
}

void fill_nonfinite(const Source& from, const Row& row, double* out) {
  fill_normal(from, row, out);
  const auto chosen = static_cast<TensorId>(from.word(kNonfiniteStream, 0) % 3);
  const uint32_t word = from.word(kNonfiniteStream, 1 + row.first);
  if (row.t != chosen || word % 16 != 0) return;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double values[] = {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity};
  out[word / 64 % static_cast<uint64_t>(row.dim)] = values[word / 16 % 3];
}

using FillRow = void (*)(const Source&, const Row&, double*);
constexpr std::array<std::string_view, 14> kNames = {
    "normal", "uniform", "large",  "needle",     "equal",     "zero",    "low",
    "high",   "huge",    "onehot", "structured", "subnormal", "largest", "nonfinite"};
constexpr FillRow kFill[] = {fill_normal,  fill_uniform,  fill_large,      fill_needle,
                             fill_equal,   fill_zero,     fill_low,        fill_high,
                             fill_huge,    fill_onehot,   fill_structured, fill_subnormal,
                             fill_largest, fill_nonfinite};

void fill_tensor(Tensors& tensors, TensorId t, const Source& from, FillRow fill) {
  const ProblemCase& c = tensors.problem_case();
  const AttentionProblem& p = c.problem;
  const Extents e = p.extents(t);
  const bool query_side = t == TensorId::kQ || t == TensorId::kDo;
  std::vector<double> values(static_cast<std::size_t>(e.dim));
  int64_t token = 0;
  for (int64_t sequence = 0; sequence < p.batch; ++sequence) {
    const Lengths n = lengths_of(c, sequence);
    const int64_t length = query_side ? n.q : n.k;
    for (int64_t position = 0; position < length; ++position, ++token) {
      const int64_t b = p.varlen ? 0 : sequence, s = p.varlen ? token : position;
      for (int64_t h = 0; h < e.heads; ++h) {
        const Row row = {t,      b,        s,
                         h,      sequence, position,
                         n,      e.dim,    ((b * e.seqlen + s) * e.heads + h) * e.dim,
                         e.heads};
        fill(from, row, values.data());
        tensors.set_row(t, b, s, h, values.data());
      }
    }
  }
}

// Geometric in the head, as models choose them, and a little apart in each batch element; now and
// then the last head's is negative.
void fill_slopes(Tensors& tensors, const Source& from) {
  const AttentionProblem& p = tensors.problem();
  const int64_t sets = tensors.alibi_batch_stride() == 0 ? 1 : std::max<int64_t>(p.batch, 1);
  for (int64_t b = 0; b < sets; ++b) {
    for (int64_t h = 0; h < p.num_heads; ++h) {
      const double jitter = 1 + 0.25 * unit_interval(from.word(kSlopeStream, b));
      double slope =
          std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(p.num_heads));
      if (h > 0 && h == p.num_heads - 1 && from.seed % 5 == 3) slope = -slope;
      tensors.alibi_slopes()[b * p.num_heads + h] = static_cast<float>(slope * jitter);
    }
  }
}

}  // namespace

double normal_at(uint64_t seed, uint64_t stream, uint64_t index) {
  double block[4];
  normal_block(PhiloxStream(seed, stream), index / 4, block);
  return block[index % 4];
}

std::span<const std::string_view> data_families() { return kNames; }

bool is_data_family(std::string_view name) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

Status fill_inputs(Tensors& tensors) {
  const ProblemCase& c = tensors.problem_case();
  const auto found = std::find(kNames.begin(), kNames.end(), c.data);
  if (found == kNames.end()) {
    std::string known;
    for (const std::string_view name : kNames) known += format(" {}", name);
    return invalid_argument("data family \"{}\" is not one of{}", c.data, known);
  }
  const Source from = {c.problem, c.seed};
  const FillRow fill = kFill[found - kNames.begin()];
  for (const TensorId t : {TensorId::kQ, TensorId::kK, TensorId::kV}) {
    fill_tensor(tensors, t, from, fill);
  }
  if (c.problem.backward()) fill_tensor(tensors, TensorId::kDo, from, fill);
  if (c.problem.alibi) fill_slopes(tensors, from);
  return {};
}

}  // namespace tilewise::harness
