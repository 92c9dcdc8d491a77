// Input data by name. An element depends on (family, seed, tensor, index) only, so one line of text
// repeats a case on any machine whatever its layout.
//
//   normal      N(0,1)
//   uniform     [0,1)
//   large       q x5, k x3: scores of spread 15
//   needle      one key of each head takes nearly all weight: 0, a tile edge +-1, the last, random
//   equal       all keys of a head alike
//   zero        q = 0, so lse = ln(visible keys)
//   low, high   all scores near -120, +120
//   huge        raw q.k of -2^12 d or 2^30 d (beyond -5e4 and 1e9), exact in fp32
//   onehot      v[j] = unit vector j mod dv: o shows the visible set
//   structured  1 % of the channels of k x50, a sink token
//   subnormal   below the smallest normal number of the type
//   largest     magnitudes as large as sums in fp32 allow, in q and v
//   nonfinite   normal with a few NaN and infinities in one of q, k, v (forward)
#pragma once

#include <span>
#include <string_view>

#include "core/problem.h"
#include "core/status.h"
#include "harness/buffers.h"

namespace tilewise::harness {

std::span<const std::string_view> data_families();
bool is_data_family(std::string_view name);

// Fills q, k, v (and do) by the family and seed of the tensors' case, and the ALiBi slopes by its
// seed. An unknown family is an error that lists the known ones.
Status fill_inputs(Tensors& tensors);

// The N(0,1) value of element `index` of a stream.
double normal_at(uint64_t seed, uint64_t stream, uint64_t index);

}  // namespace tilewise::harness
