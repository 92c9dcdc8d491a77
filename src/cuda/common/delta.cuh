// What the backward needs of each query row before it begins: delta = rowsum(dO o O), the lse in
// base 2, and zeros in the sums of dQ.
#pragma once

#include "core/numeric.h"
#include "cuda/common/sequence_place.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/fragment.cuh"

namespace tilewise::cuda {

constexpr int kDeltaThreads = 256;

template <DType kType>
__device__ __forceinline__ float dot_chunks(const uint4& a, const uint4& b) {
  const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 u = ptx::unpack<kType>(x[i]), v = ptx::unpack<kType>(y[i]);
    sum = fmaf(u.x, v.x, sum);
    sum = fmaf(u.y, v.y, sum);
  }
  return sum;
}

// One thread block a block of kBlockM rows of (blockIdx.x, head, sequence); eight lanes a row.
template <DType kType, int kBlockM>
__global__ void __launch_bounds__(kDeltaThreads)
    delta(const __grid_constant__ BackwardParams p, int head_dim) {
  const int head = static_cast<int>(blockIdx.y);
  const SequencePlace at =
      SequencePlace::of(p, p.first_batch + static_cast<int>(blockIdx.z), kBlockM);
  const int first = static_cast<int>(blockIdx.x) * kBlockM, thread = static_cast<int>(threadIdx.x);
  if (p.ticket != nullptr && thread == 0) *p.ticket = 0;
  if (first >= at.n_q) return;
  const int64_t padded = at.padded_row(head, first);
  if (p.dq_turn != nullptr && thread == 0) p.dq_turn[padded / kBlockM] = 0;
  float4* sums = reinterpret_cast<float4*>(p.dq_sum + padded * head_dim);
  for (int i = thread; i < kBlockM * head_dim / 4; i += kDeltaThreads) {
    sums[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
#pragma unroll  // so that the loads of all rows are on their way together
  for (int i = 0; i < kBlockM; i += kDeltaThreads / 8) {
    const int r = i + thread / 8;
    const int row = first + r;
    float sum = 0.0f, lse = __builtin_inff();
    if (row < at.n_q) {
      const uint16_t* o = at.query_row(p.o, row, head);
      const uint16_t* d_o = at.query_row(p.do_, row, head);
#pragma unroll 2
      for (int chunk = thread % 8; 8 * chunk < p.o.dim; chunk += 8) {
        sum += dot_chunks<kType>(load_chunk(o, chunk, p.o.dim, p.o.vectors),
                                 load_chunk(d_o, chunk, p.o.dim, p.do_.vectors));
      }
      const int64_t sequence = p.cu_seqlens_q != nullptr ? 0 : at.batch;
      lse = p.lse[sequence * p.lse_batch + head * p.lse_head + at.q_start + row] * kLog2e;
      if (lse == -__builtin_inff()) lse = __builtin_inff();
    }
#pragma unroll
    for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (thread % 8 == 0) {
      p.row_lse[padded + r] = lse;
      p.delta[padded + r] = lse == __builtin_inff() ? 0.0f : sum;
    }
  }
}

}  // namespace tilewise::cuda
