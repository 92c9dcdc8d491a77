// The kernels of forward.cuh, chosen by values.
#pragma once

#include <cuda_runtime_api.h>

#include "bench/ablation/params.h"
#include "bench/ablation/tile.h"
#include "core/dtype.h"

namespace tilewise::ablation {

// The three changes of FlashAttention-2; all false is FlashAttention-1.
struct Changes {
  bool normalise_once = false;
  bool parallel_rows = false;
  bool split_queries = false;
};

struct Kernel {
  const void* function;
  Tile tile;
  int shared_bytes;
  bool parallel_rows;
};

// One for each compiled element type and head dim.
template <DType kType, int kHeadDim>
Kernel kernel_of(bool causal, Changes changes);

// head_dim is 64 or 128, dtype fp16 or bf16.
Kernel kernel_of(DType dtype, int head_dim, bool causal, Changes changes);

// Computes o, and lse or row_max and row sums, on the default stream.
cudaError_t launch(const Kernel& kernel, AblationParams params);

}  // namespace tilewise::ablation
