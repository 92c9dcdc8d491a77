// What a CUDA kernel receives: plain data, copied into the launch.
#pragma once

#include <cstdint>

#include "core/mask.h"

namespace tilewise::cuda {

// 16-bit elements of a (batch, seqlen, head, dim) tensor; strides in elements.
struct TensorRef {
  uint16_t* data = nullptr;  // inputs too: never written through
  int64_t batch = 0, seqlen = 0, head = 0;
  int32_t dim = 0;
  bool vectors = false;  // every row starts at a multiple of 16 bytes
};

struct ForwardParams {
  TensorRef q, k, v, o;
  float* lse = nullptr;                 // optional
  int64_t lse_batch = 0, lse_head = 0;  // strides; seqlen stride 1
  const float* alibi_slopes = nullptr;  // null: off
  int64_t alibi_batch = 0;
  const int32_t* cu_seqlens_q = nullptr;  // null: dense
  const int32_t* cu_seqlens_k = nullptr;
  int32_t seqlen_q = 0, seqlen_k = 0;  // dense; varlen: the longest
  MaskSpec mask;
  float scale = 1.0f;
  float softcap = 0.0f;                         // 0: off
  bool plain = false;                           // neither softcap nor ALiBi, and scale > 0
  int32_t batch = 0, num_heads = 0, group = 1;  // group: query heads per kv head
  int32_t first_batch = 0;                      // of this launch
  int32_t pack = 1;          // query heads that share a block's rows: 1, or group
  int32_t m_blocks = 1;      // blocks of query rows of the longest sequence
  int32_t num_splits = 1;    // pieces of the keys
  int32_t split_blocks = 0;  // steps of block_n keys of a piece
  // Splits: (split, batch, head, query, dim of v) and (split, batch, head, query) of rows that have
  // been divided by their sums; batch 1 and query of all tokens when varlen.
  float* partial_o = nullptr;
  float* partial_lse = nullptr;
  int64_t partial_rows = 0;  // of one split
};

}  // namespace tilewise::cuda
