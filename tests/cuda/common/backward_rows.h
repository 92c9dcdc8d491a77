// Shapes for the backward's passes over query rows, and where their rows stand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda/params.h"

namespace tilewise::cuda::test {

struct RowsShape {
  int batch, heads, seqlen_q;
  std::vector<int32_t> cu_q;  // varlen: seqlen_q is the longest

  bool varlen() const { return !cu_q.empty(); }
  int queries(int b) const { return varlen() ? cu_q[b + 1] - cu_q[b] : seqlen_q; }
  int first_token(int b) const { return varlen() ? cu_q[b] : 0; }
  int64_t tokens() const { return varlen() ? cu_q.back() : int64_t{batch} * seqlen_q; }

  int64_t padded_q(int block_m) const {
    const int64_t rows = varlen() ? cu_q.back() + int64_t{batch} * block_m : seqlen_q + block_m - 1;
    return rows / block_m * block_m;
  }
  int64_t workspace_rows(int block_m) const {
    return padded_q(block_m) * heads * (varlen() ? 1 : batch);
  }
  // Row 0 of a head of a sequence, as BackwardParams describes it.
  int64_t workspace_row(int b, int head, int block_m) const {
    if (!varlen()) return (int64_t{b} * heads + head) * padded_q(block_m);
    return (cu_q[b] / block_m + b) * int64_t{block_m} + head * padded_q(block_m);
  }

  // A tensor whose rows of `dim` elements have `gap` more behind them; by tokens, then heads.
  TensorRef tensor(uint16_t* data, int dim, int gap) const {
    TensorRef x;
    x.data = data;
    x.head = dim + gap;
    x.seqlen = x.head * heads;
    x.batch = varlen() ? 0 : x.seqlen * seqlen_q;
    x.dim = dim;
    x.vectors = (dim + gap) % 8 == 0;
    return x;
  }
  int64_t row_of(int b, int query, int head) const {  // of such a tensor
    const int64_t token = varlen() ? cu_q[b] + query : int64_t{b} * seqlen_q + query;
    return token * heads + head;
  }

  void set(BackwardParams& p, int block_m, const int32_t* cu_on_device) const {
    p.batch = batch;
    p.num_heads = heads;
    p.seqlen_q = seqlen_q;
    p.cu_seqlens_q = p.cu_seqlens_k = varlen() ? cu_on_device : nullptr;
    p.m_blocks = std::max(1, (seqlen_q + block_m - 1) / block_m);
    p.padded_q = padded_q(block_m);
  }
};

inline std::vector<RowsShape> some_shapes() {
  return {{1, 1, 1, {}},
          {2, 3, 64, {}},
          {3, 2, 130, {}},
          {1, 4, 63, {}},
          {4, 2, 130, {0, 3, 3, 133, 134}},
          {6, 3, 65, {0, 64, 129, 192, 192, 193, 256}},
          {3, 1, 200, {0, 0, 200, 200}}};
}

}  // namespace tilewise::cuda::test
