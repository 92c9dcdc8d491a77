// Where a thread block works: its sequence, heads and query rows, and the addresses of their rows.
#pragma once

#include "cuda/params.h"

namespace tilewise::cuda {

using Steps = BasicTileRange<int>;  // steps of block_n keys

struct Place {
  int batch, kv_head, split;
  int first_head;        // query head of the block's row 0
  int q_start, k_start;  // first tokens, varlen
  int n_q, n_k;          // lengths of the sequence
  int first_row;         // of the block among the packed rows: row r is query r / pack
  int rows;              // of the block; <= 0 when it has none

  // Thread blocks run over (splits and blocks of rows; heads; batches): neighbours share K and V.
  // Under a band the last rows, which see most keys, go first, and those of all heads before the
  // next ones (p.heads_first): the short ones at the end fill what the long ones leave.
  static __device__ __forceinline__ Place of_block(const ForwardParams& p, int block_m,
                                                   bool longest_first) {
    Place at;
    int m_block = static_cast<int>(p.heads_first ? blockIdx.y : blockIdx.x);
    at.split = 0;
    if (p.num_splits > 1) {
      at.split = m_block / p.m_blocks;
      m_block %= p.m_blocks;
    }
    at.first_head = static_cast<int>(p.heads_first ? blockIdx.x : blockIdx.y) * p.pack;
    at.kv_head = p.group == 1 ? at.first_head : at.first_head / p.group;
    at.batch = p.first_batch + static_cast<int>(blockIdx.z);
    at.q_start = at.k_start = 0;
    at.n_q = p.seqlen_q;
    at.n_k = p.seqlen_k;
    if (p.cu_seqlens_q != nullptr) {
      at.q_start = p.cu_seqlens_q[at.batch];
      at.k_start = p.cu_seqlens_k[at.batch];
      at.n_q = p.cu_seqlens_q[at.batch + 1] - at.q_start;
      at.n_k = p.cu_seqlens_k[at.batch + 1] - at.k_start;
    }
    if (longest_first) m_block = p.m_blocks - 1 - m_block;
    at.first_row = m_block * block_m;
    at.rows = min(at.n_q * p.pack - at.first_row, block_m);
    return at;
  }

  __device__ __forceinline__ BasicLengths<int> lengths() const { return {n_q, n_k}; }
  __device__ __forceinline__ int query(const ForwardParams& p, int row) const {
    return p.pack == 1 ? first_row + row : (first_row + row) / p.pack;
  }
  __device__ __forceinline__ int head(const ForwardParams& p, int row) const {
    return p.pack == 1 ? first_head : first_head + (first_row + row) % p.pack;
  }

  // The steps that this block takes.
  __device__ __forceinline__ Steps steps(const ForwardParams& p, int block_n, bool banded) const {
    const Steps kv = banded
                         ? p.mask.kv_range(query(p, 0), query(p, rows - 1) + 1, lengths(), block_n)
                         : Steps{0, 0, n_k / block_n, (n_k + block_n - 1) / block_n};
    if (p.num_splits == 1) return kv;
    const int begin = split * p.split_blocks, end = begin + p.split_blocks;
    const auto cut = [&](int x) { return max(begin, min(x, end)); };
    return {cut(kv.begin), cut(kv.full_begin), cut(kv.full_end), cut(kv.end)};
  }

  __device__ __forceinline__ const uint16_t* q_row(const ForwardParams& p, int row) const {
    return row_of(p.q, q_start + query(p, row), head(p, row));
  }
  __device__ __forceinline__ uint16_t* o_row(const ForwardParams& p, int row) const {
    return row_of(p.o, q_start + query(p, row), head(p, row));
  }
  __device__ __forceinline__ const uint16_t* k_row(const ForwardParams& p, int key) const {
    return row_of(p.k, k_start + key, kv_head);
  }
  __device__ __forceinline__ const uint16_t* v_row(const ForwardParams& p, int key) const {
    return row_of(p.v, k_start + key, kv_head);
  }
  // Row of the split's partial results, for its fp32 o and its lse.
  __device__ __forceinline__ int64_t partial_index(const ForwardParams& p, int row) const {
    const int64_t sequence = p.cu_seqlens_q != nullptr ? 0 : batch;
    return split * p.partial_rows + (sequence * p.num_heads + head(p, row)) * p.partial_queries +
           q_start + query(p, row);
  }
  __device__ __forceinline__ float* partial_row(const ForwardParams& p, int row) const {
    return p.partial_o + partial_index(p, row) * p.o.dim;
  }
  __device__ __forceinline__ void store_lse(const ForwardParams& p, int row, float lse) const {
    if (p.num_splits > 1) {
      p.partial_lse[partial_index(p, row)] = lse;
    } else if (p.lse != nullptr) {
      const int64_t sequence = p.cu_seqlens_q != nullptr ? 0 : batch;
      p.lse[sequence * p.lse_batch + head(p, row) * p.lse_head + q_start + query(p, row)] = lse;
    }
  }

 private:
  __device__ __forceinline__ uint16_t* row_of(const TensorRef& x, int64_t token, int head) const {
    return x.data + batch * x.batch + token * x.seqlen + head * x.head;
  }
};

}  // namespace tilewise::cuda
