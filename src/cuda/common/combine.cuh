// Joins the splits of a forward: o = sum_i exp(lse_i - lse) o_i (OnlineSoftmax::merge).
#pragma once

#include "core/numeric.h"
#include "cuda/params.h"
#include "cuda/ptx/math.cuh"
#include "cuda/tile/rows.cuh"

namespace tilewise::cuda {

// One warp a row of (batch, head, query). The row's place in o and lse follows from its index.
template <DType kType>
__global__ void __launch_bounds__(128) combine(const __grid_constant__ ForwardParams p) {
  const int64_t row = int64_t{blockIdx.x} * 4 + threadIdx.x / 32;
  if (row >= p.partial_rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool varlen = p.cu_seqlens_q != nullptr;
  const int64_t queries = p.partial_rows / (varlen ? p.num_heads : int64_t{p.batch} * p.num_heads);
  const int64_t query = row % queries, head = row / queries % p.num_heads;
  const int64_t batch = row / queries / p.num_heads;

  float most = -__builtin_inff();
  for (int i = lane; i < p.num_splits; i += 32) {
    most = fmaxf(most, p.partial_lse[i * p.partial_rows + row]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
  }
  const float shift = most == -__builtin_inff() ? 0.0f : most;
  const auto weight = [&](int i) {  // in the same order in every lane: the same sum
    return ptx::exp2((p.partial_lse[i * p.partial_rows + row] - shift) * kLog2e);
  };
  float sum = 0.0f;
  for (int i = 0; i < p.num_splits; ++i) sum += weight(i);
  const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
  if (p.lse != nullptr && lane == 0) {
    p.lse[batch * p.lse_batch + head * p.lse_head + query] = shift + kLn2 * log2f(sum);
  }
  uint16_t* to = p.o.data + batch * p.o.batch + query * p.o.seqlen + head * p.o.head;
  for (int x = lane; x < p.o.dim; x += 32) {
    float o = 0.0f;
    for (int i = 0; i < p.num_splits; ++i) {
      const int64_t at = i * p.partial_rows + row;
      if (p.partial_lse[at] != -__builtin_inff()) o += weight(i) * p.partial_o[at * p.o.dim + x];
    }
    to[x] = static_cast<uint16_t>(ptx::pack<kType>(o * factor, 0.0f));
  }
}

}  // namespace tilewise::cuda
