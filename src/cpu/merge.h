// merge: joins attention over disjoint sets of keys, o = sum_i exp(lse_i - lse) * o_i.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/problem.h"
#include "core/status.h"

namespace tilewise::cpu {

struct MergeArgs {
  int64_t num_parts = 0;                    // 0: the result is empty rows
  const void* const* o_parts = nullptr;     // each (batch, seqlen, num_heads, head_dim)
  const float* const* lse_parts = nullptr;  // each (batch, num_heads, seqlen), natural log
  void* o = nullptr;                        // (batch, seqlen, num_heads, head_dim)
  float* lse = nullptr;                     // optional
  DType part_dtype = DType::kFp32, dtype = DType::kFp32;
  int64_t batch = 0, seqlen = 0, num_heads = 0, head_dim = 0;
  Strides part_strides, o_strides;  // of every part; of o
};

// Computes in fp64 on the calling thread, allocates only the text of an error, and writes nothing
// unless the status is ok. (0, -inf) is the identity: whatever its o holds, a row of a part with
// that lse changes no bit, and a row that has one other part is that part's, bit for bit when the
// dtypes agree. An lse of NaN or +inf makes the row NaN.
Status merge(const MergeArgs& args);

}  // namespace tilewise::cpu
