#include "cpu/merge.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "core/overlap.h"
#include "cpu/fp64.h"

namespace tilewise::cpu {
namespace {

// A normalised part as a softmax row: its sum is 1 at reference lse, and 0 when it is empty. An lse
// that no row of attention has (NaN, +inf) makes the sum NaN.
DoubleSoftmax row_of(float lse) {
  DoubleSoftmax row;
  row.reference = static_cast<double>(lse) * 1.4426950408889634074;
  row.sum = lse == -std::numeric_limits<float>::infinity() ? 0.0 : 1.0;
  if (!(lse < std::numeric_limits<float>::infinity())) {
    row.reference = 0.0;
    row.sum = std::numeric_limits<double>::quiet_NaN();
  }
  return row;
}

// Elements [begin, begin + count) of one row: merges part after part into `sum`.
constexpr int64_t kTile = 64;
struct RowAt {
  int64_t part, o, lse;  // elements from the base pointers
};

DoubleSoftmax merge_tile(const MergeArgs& a, const RowAt& at, int64_t begin, int64_t count,
                         double* sum) {
  DoubleSoftmax total;
  for (int64_t x = 0; x < count; ++x) sum[x] = 0.0;
  for (int64_t i = 0; i < a.num_parts; ++i) {
    const DoubleSoftmax part = row_of(a.lse_parts[i][at.lse]);
    if (part.sum == 0.0) continue;
    const bool first = total.sum == 0.0;
    double mine = 0.0, theirs = 0.0;
    total.merge(part, &mine, &theirs);
    for (int64_t x = 0; x < count; ++x) {
      const double o = load_double(a.o_parts[i], at.part + begin + x, a.part_dtype);
      sum[x] = first ? theirs * o : mine * sum[x] + theirs * o;  // keeps -0 of the first
    }
  }
  return total;
}

void merge_row(const MergeArgs& a, const RowAt& at) {
  double sum[kTile];
  DoubleSoftmax total;
  for (int64_t begin = 0; begin < a.head_dim; begin += kTile) {
    const int64_t left = a.head_dim - begin;
    const int64_t count = left < kTile ? left : kTile;
    total = merge_tile(a, at, begin, count, sum);
    for (int64_t x = 0; x < count; ++x) store_double(a.o, at.o + begin + x, a.dtype, sum[x]);
  }
  if (a.lse != nullptr) {
    double lse = 0.0;
    total.finalize(&lse);
    a.lse[at.lse] = static_cast<float>(lse);
  }
}

Status check_dtype(const char* name, DType dtype) {
  if (dtype >= DType::kFp16 && dtype <= DType::kFp64) return {};
  return invalid_argument("{} is {}; it must be 0 (fp16), 1 (bf16), 2 (fp32) or 3 (fp64)", name,
                          static_cast<int32_t>(dtype));
}

// Rows of o may not overlap: each stride must step over what the smaller ones span.
Status check_output_strides(const MergeArgs& a) {
  struct Axis {
    const char* name;
    int64_t stride, extent;
  } axes[] = {{"batch", a.o_strides.batch, a.batch},
              {"seqlen", a.o_strides.seqlen, a.seqlen},
              {"head", a.o_strides.head, a.num_heads}};
  std::sort(std::begin(axes), std::end(axes),
            [](const Axis& x, const Axis& y) { return x.stride < y.stride; });
  int64_t span = a.head_dim;
  for (const Axis& axis : axes) {
    if (axis.stride < 0 || (axis.stride < span && axis.extent > 1)) {
      return invalid_argument("o_strides.{} is {}; it must be >= {}, what lies between two rows",
                              axis.name, axis.stride, span);
    }
    int64_t step = 0;
    if (axis.extent > 1 && (__builtin_mul_overflow(axis.extent - 1, axis.stride, &step) ||
                            __builtin_add_overflow(span, step, &span))) {
      return {StatusCode::kOverflow, "o_strides: o does not fit into 64 bits"};
    }
  }
  return {};
}

Status check_sizes(const MergeArgs& a) {
  const struct {
    const char* name;
    int64_t value, least;
  } sizes[] = {{"num_parts", a.num_parts, 0},
               {"batch", a.batch, 0},
               {"seqlen", a.seqlen, 0},
               {"num_heads", a.num_heads, 1},
               {"head_dim", a.head_dim, 1},
               {"part_strides.batch", a.part_strides.batch, 0},
               {"part_strides.seqlen", a.part_strides.seqlen, 0},
               {"part_strides.head", a.part_strides.head, 0}};
  for (const auto& s : sizes) {
    if (s.value < s.least) {
      return invalid_argument("{} is {}; it must be >= {}", s.name, s.value, s.least);
    }
  }
  return check_output_strides(a);
}

Status check_memory(const char* name, int64_t index, const void* pointer, const Footprint& f,
                    int alignment) {
  if (f.bytes == 0) return {};
  const std::string part = index < 0 ? std::string(name) : format("{}[{}]", name, index);
  if (pointer == nullptr) return invalid_argument("{} is null", part);
  if (f.overflow) {
    return {StatusCode::kOverflow, format("{} reaches past the end of the address space", part)};
  }
  if (reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(alignment) != 0) {
    return invalid_argument("{} must be aligned to {} bytes", part, alignment);
  }
  return {};
}

Status check_overlaps(const MergeArgs& a, const Extents& extents, uint64_t lse_bytes) {
  const Footprint o = footprint_of(a.o, extents, a.o_strides, size_of(a.dtype));
  const Footprint lse = footprint_of(a.lse, a.lse == nullptr ? 0 : lse_bytes);
  if (!disjoint(o, lse)) return invalid_argument("o overlaps lse");
  for (int64_t i = 0; i < a.num_parts; ++i) {
    const Footprint part =
        footprint_of(a.o_parts[i], extents, a.part_strides, size_of(a.part_dtype));
    const Footprint part_lse = footprint_of(a.lse_parts[i], lse_bytes);
    if (!disjoint(o, part)) return invalid_argument("o overlaps o_parts[{}]", i);
    if (!disjoint(o, part_lse)) return invalid_argument("o overlaps lse_parts[{}]", i);
    if (!disjoint(lse, part)) return invalid_argument("lse overlaps o_parts[{}]", i);
    if (!disjoint(lse, part_lse)) return invalid_argument("lse overlaps lse_parts[{}]", i);
  }
  return {};
}

Status check_pointers(const MergeArgs& a) {
  const Extents extents{a.batch, a.seqlen, a.num_heads, a.head_dim};
  uint64_t lse_bytes = sizeof(float);
  for (const int64_t n : {a.batch, a.seqlen, a.num_heads}) {
    if (__builtin_mul_overflow(lse_bytes, static_cast<uint64_t>(n), &lse_bytes)) {
      return {StatusCode::kOverflow,
              format("batch {} x seqlen {} x num_heads {} does not fit into 64 bits", a.batch,
                     a.seqlen, a.num_heads)};
    }
  }
  if (lse_bytes == 0) return {};
  if (a.num_parts > 0 && a.o_parts == nullptr) return invalid_argument("o_parts is null");
  if (a.num_parts > 0 && a.lse_parts == nullptr) return invalid_argument("lse_parts is null");
  const auto check = [&](const char* name, int64_t i, const void* p, const Strides& s, DType t) {
    return check_memory(name, i, p, footprint_of(p, extents, s, size_of(t)), size_of(t));
  };
  if (Status s = check("o", -1, a.o, a.o_strides, a.dtype); !s.ok()) return s;
  if (a.lse != nullptr) {
    Status s = check_memory("lse", -1, a.lse, footprint_of(a.lse, lse_bytes), sizeof(float));
    if (!s.ok()) return s;
  }
  for (int64_t i = 0; i < a.num_parts; ++i) {
    Status s = check("o_parts", i, a.o_parts[i], a.part_strides, a.part_dtype);
    if (!s.ok()) return s;
    const Footprint lse = footprint_of(a.lse_parts[i], lse_bytes);
    s = check_memory("lse_parts", i, a.lse_parts[i], lse, sizeof(float));
    if (!s.ok()) return s;
  }
  return check_overlaps(a, extents, lse_bytes);
}

}  // namespace

Status merge(const MergeArgs& a) {
  if (Status s = check_dtype("part_dtype", a.part_dtype); !s.ok()) return s;
  if (Status s = check_dtype("dtype", a.dtype); !s.ok()) return s;
  if (Status s = check_sizes(a); !s.ok()) return s;
  if (Status s = check_pointers(a); !s.ok()) return s;
  for (int64_t b = 0; b < a.batch; ++b) {
    for (int64_t h = 0; h < a.num_heads; ++h) {
      for (int64_t i = 0; i < a.seqlen; ++i) {
        const auto element = [&](const Strides& s) {
          return b * s.batch + i * s.seqlen + h * s.head;
        };
        merge_row(a, {element(a.part_strides), element(a.o_strides),
                      (b * a.num_heads + h) * a.seqlen + i});
      }
    }
  }
  return {};
}

}  // namespace tilewise::cpu
