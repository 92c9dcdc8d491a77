// merge: defaults of strides, then the CPU does it.
#include "capi/boundary.h"
#include "capi/convert.h"
#include "capi/struct_size.h"
#include "cpu/merge.h"

using namespace tilewise;        // NOLINT(google-build-using-namespace): this file is the boundary
using namespace tilewise::capi;  // NOLINT(google-build-using-namespace)

tilewise_status tilewise_merge(const tilewise_merge_params* given) {
  return guarded([&]() -> Status {
    tilewise_merge_params params = TILEWISE_MERGE_PARAMS_INIT;
    if (Status s = read_struct("params", given, kFirstMergeSize, params); !s.ok()) return s;
    cpu::MergeArgs args;
    args.num_parts = params.num_parts;
    args.o_parts = params.o_parts;
    args.lse_parts = params.lse_parts;
    args.o = params.o;
    args.lse = params.lse;
    args.part_dtype = static_cast<DType>(params.part_dtype);  // cpu::merge knows the values
    args.dtype = static_cast<DType>(params.dtype);
    args.batch = params.batch;
    args.seqlen = params.seqlen;
    args.num_heads = params.num_heads;
    args.head_dim = params.head_dim;
    AttentionProblem shape;  // o of this problem is what is merged
    shape.batch = params.batch;
    shape.seqlen_q = params.seqlen;
    shape.num_heads = params.num_heads;
    shape.head_dim_v = params.head_dim;
    const Strides contiguous = default_strides(shape, TensorId::kO);
    Status s = strides_of("part_strides", params.part_strides, contiguous, args.part_strides);
    if (!s.ok()) return s;
    s = strides_of("o_strides", params.o_strides, contiguous, args.o_strides);
    if (!s.ok()) return s;
    return cpu::merge(args);
  });
}
