#include "core/overlap.h"

namespace tilewise {
namespace {

// Adds (extent - 1) * stride elements; false when the sum leaves 64 bits.
bool grow(uint64_t& bytes, uint64_t extent, uint64_t stride) {
  uint64_t step = 0;
  return !__builtin_mul_overflow(extent - 1, stride, &step) &&
         !__builtin_add_overflow(bytes, step, &bytes);
}

// How far a reaches from its begin when steps that are multiples of `modulus` are not counted:
// every byte of a lies at begin + n * modulus + r with r below this.
uint64_t reach_modulo(const Footprint& a, uint64_t modulus) {
  uint64_t reach = a.row_bytes;
  for (int i = 0; i < a.rank; ++i) {
    if (a.dims[i].stride % modulus != 0) reach += (a.dims[i].extent - 1) * a.dims[i].stride;
  }
  return reach;
}

// Both are arcs on a circle of `modulus` bytes; apart when each begins behind the other's end.
bool disjoint_modulo(const Footprint& a, const Footprint& b, uint64_t modulus) {
  const uint64_t from_a_to_b = b.begin >= a.begin
                                   ? (b.begin - a.begin) % modulus
                                   : (modulus - (a.begin - b.begin) % modulus) % modulus;
  return reach_modulo(a, modulus) <= from_a_to_b &&
         reach_modulo(b, modulus) <= modulus - from_a_to_b;
}

}  // namespace

Footprint footprint_of(const void* pointer, const Extents& extents, const Strides& strides,
                       int element_bytes) {
  Footprint f;
  f.begin = reinterpret_cast<uintptr_t>(pointer);
  if (extents.batch == 0 || extents.seqlen == 0 || extents.heads == 0 || extents.dim == 0) return f;
  const auto size = static_cast<uint64_t>(element_bytes);
  f.overflow = __builtin_mul_overflow(static_cast<uint64_t>(extents.dim), size, &f.row_bytes);
  f.bytes = f.row_bytes;
  const int64_t pairs[3][2] = {{extents.batch, strides.batch},
                               {extents.seqlen, strides.seqlen},
                               {extents.heads, strides.head}};
  for (const auto& [extent, stride] : pairs) {
    if (extent == 1 || stride == 0) continue;
    Footprint::Dimension dim{static_cast<uint64_t>(extent), 0};
    f.overflow |= __builtin_mul_overflow(static_cast<uint64_t>(stride), size, &dim.stride) ||
                  !grow(f.bytes, dim.extent, dim.stride);
    f.dims[f.rank++] = dim;
  }
  f.overflow |= f.begin + f.bytes < f.begin;
  return f;
}

Footprint footprint_of(const void* pointer, uint64_t bytes) {
  Footprint f;
  f.begin = reinterpret_cast<uintptr_t>(pointer);
  f.bytes = f.row_bytes = bytes;
  f.overflow = f.begin + bytes < f.begin;
  return f;
}

bool disjoint(const Footprint& a, const Footprint& b) {
  if (a.bytes == 0 || b.bytes == 0 || a.end() <= b.begin || b.end() <= a.begin) return true;
  for (int i = 0; i < a.rank; ++i) {
    if (disjoint_modulo(a, b, a.dims[i].stride)) return true;
  }
  for (int i = 0; i < b.rank; ++i) {
    if (disjoint_modulo(a, b, b.dims[i].stride)) return true;
  }
  return false;
}

}  // namespace tilewise
