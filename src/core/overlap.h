// Which bytes a strided tensor touches, and whether two tensors share any.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tilewise {

// The bytes of a (batch, seqlen, head, dim) view: rows of `row_bytes` at begin + sum of
// index * stride over the dimensions below. Dimensions of extent 1 or stride 0 are left out.
struct Footprint {
  struct Dimension {
    uint64_t extent = 0;
    uint64_t stride = 0;  // bytes
  };
  uint64_t begin = 0;  // address
  uint64_t bytes = 0;  // from the first byte to past the last one; 0: empty
  uint64_t row_bytes = 0;
  int rank = 0;
  Dimension dims[3];
  bool overflow = false;  // past the end of the address space

  uint64_t end() const { return begin + bytes; }
};

// Strides must not be negative.
Footprint footprint_of(const void* pointer, const Extents& extents, const Strides& strides,
                       int element_bytes);
Footprint footprint_of(const void* pointer, uint64_t bytes);

// True when the two share no byte for certain: their byte ranges are apart, or they are apart
// modulo a stride of one of them (q, k, v or their gradients interleaved in one buffer, in any
// order of batch, token and head). May be false for layouts that interleave in other ways.
bool disjoint(const Footprint& a, const Footprint& b);

}  // namespace tilewise
