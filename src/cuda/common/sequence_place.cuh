// A sequence of the backward, and where its rows are in the tensors and in the workspace.
#pragma once

#include "cuda/params.h"
#include "cuda/tile/fragment.cuh"

namespace tilewise::cuda {

// A sequence, its lengths, and its rows in the workspace (BackwardParams).
struct SequencePlace {
  int batch = 0;
  int q_start = 0, k_start = 0;  // first tokens, varlen
  int n_q = 0, n_k = 0;
  int64_t padded_start = 0, padded_heads = 0;  // row 0 of head 0; rows from head to head

  static __device__ __forceinline__ SequencePlace of(const BackwardParams& p, int batch,
                                                     int block_m) {
    SequencePlace at;
    at.batch = batch;
    at.n_q = p.seqlen_q;
    at.n_k = p.seqlen_k;
    at.padded_heads = p.padded_q;
    if (p.cu_seqlens_q == nullptr) {
      at.padded_start = int64_t{batch} * p.num_heads * p.padded_q;
      return at;
    }
    at.q_start = uniform(p.cu_seqlens_q[batch]);
    at.k_start = uniform(p.cu_seqlens_k[batch]);
    at.n_q = uniform(p.cu_seqlens_q[batch + 1]) - at.q_start;
    at.n_k = uniform(p.cu_seqlens_k[batch + 1]) - at.k_start;
    at.padded_start = (at.q_start + int64_t{block_m} * batch) / block_m * block_m;
    return at;
  }

  __device__ __forceinline__ BasicLengths<int> lengths() const { return {n_q, n_k}; }
  // Row of the workspace.
  __device__ __forceinline__ int64_t padded_row(int head, int row) const {
    return padded_start + head * padded_heads + row;
  }
  __device__ __forceinline__ uint16_t* query_row(const TensorRef& x, int row, int head) const {
    return x.data + batch * x.batch + (q_start + int64_t{row}) * x.seqlen + head * x.head;
  }
  __device__ __forceinline__ uint16_t* key_row(const TensorRef& x, int key, int kv_head) const {
    return x.data + batch * x.batch + (k_start + int64_t{key}) * x.seqlen + kv_head * x.head;
  }
};

}  // namespace tilewise::cuda
