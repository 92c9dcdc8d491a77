// Descriptions of tensors for the copy engine.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "cuda/params.h"

namespace tilewise::cuda::sm90 {

// Of a dense tensor, for boxes of 64 columns and `rows` rows of one head (or of `outer` heads, one
// after the other) in the layout of SwizzledTile. False when the copy engine cannot address it: a
// row that does not start at a multiple of 16 bytes, a stride of 2^40 bytes or more, or a driver
// that lacks the function.
bool make_tensor_map(TensorMap* map, const TensorRef& x, DType dtype, int64_t seqlen, int64_t heads,
                     int64_t batch, int rows, int outer = 1);

}  // namespace tilewise::cuda::sm90
