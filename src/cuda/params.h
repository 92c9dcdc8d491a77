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
  bool vectors = false;  // every row is made of whole, aligned chunks of 16 bytes
};

// What both directions need.
struct AttentionParams {
  TensorRef q, k, v, o;
  float* lse = nullptr;  // output of the forward, there optional; input of the backward
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
  bool heads_first = false;  // thread blocks: x has the heads, y the blocks of rows or of keys
};

struct ForwardParams : AttentionParams {
  int32_t pack = 1;          // query heads that share a block's rows: 1, or group
  int32_t m_blocks = 1;      // blocks of query rows of the longest sequence
  int32_t num_splits = 1;    // pieces of the keys
  int32_t split_blocks = 0;  // steps of block_n keys of a piece
  // Splits: (split, batch, head, query, dim of v) and (split, batch, head, query) of rows that have
  // been divided by their sums; batch 1 and query of all tokens when varlen.
  float* partial_o = nullptr;
  float* partial_lse = nullptr;
  int64_t partial_rows = 0;     // of one split
  int64_t partial_queries = 0;  // of one head of a sequence among them
};

// A tensor's description for the copy engine, as the driver makes it (CUtensorMap).
struct alignas(128) TensorMap {
  uint64_t words[16];
};

// The sm_90 forward: thread blocks stay, and take tiles (a block of query rows of a head) one after
// the other.
struct TileForwardParams : ForwardParams {
  TensorMap q_map, k_map, v_map, o_map;
  int32_t num_tiles = 0;
  int32_t section_heads = 1;  // query heads whose tiles come together
  int32_t last_section = 0;   // has the heads that are left too
  // 0 before the launch: how many tiles have been taken besides each thread block's first. Null:
  // there are none.
  int32_t* next_tile = nullptr;
  int32_t* redo_links = nullptr;  // of each tile that is to be computed again, the one before it
};

// Rows of the backward's workspace: each head of each sequence has whole blocks of block_m rows.
// Dense: (batch, head, padded_q). Varlen: (head, padded_q), a sequence beginning at its first token
// + its index * block_m, rounded down to a multiple of block_m.
struct BackwardParams : AttentionParams {
  TensorRef do_, dq, dk, dv;
  int32_t m_blocks = 1, n_blocks = 1;  // of the longest sequence
  int64_t padded_q = 0;
  float* row_lse = nullptr;  // base 2; +inf in rows without keys and in padding
  float* delta = nullptr;    // rowsum(dO o O); 0 in padding
  // dQ / scale: blocks of block_m rows, each a sequence of accumulator atoms (dq_sum.cuh).
  float* dq_sum = nullptr;
  // Deterministic: how many key blocks have added to each block of dq_sum, and how many thread
  // blocks have begun. Else null.
  int32_t* dq_turn = nullptr;
  int32_t* ticket = nullptr;
};

// The sm_90 backward: thread blocks stay, and take tiles (a block of keys of a kv head) one after
// the other. `ticket` counts those taken besides, unless deterministic, each thread block's first.
struct TileBackwardParams : BackwardParams {
  TensorMap q_map, do_map, k_map, v_map, dk_map, dv_map;
  int32_t num_tiles = 0;
  int32_t section_heads = 1;  // kv heads whose tiles come together
  int32_t last_section = 0;   // has the heads that are left too
};

}  // namespace tilewise::cuda
