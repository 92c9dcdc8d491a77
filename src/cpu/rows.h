// The matrix of query rows a kernel works on, and the sequence it belongs to.
#pragma once

#include <cstdint>

#include "core/hd.h"
#include "core/mask.h"

namespace tilewise::cpu {

// One sequence. Dense: the starts are 0 and `batch` moves the pointers; varlen: batch strides are 0
// and the starts move them.
struct Sequence {
  int64_t batch = 0;
  int64_t q_start = 0, k_start = 0;
  Lengths n;
};

// The query rows of all heads that share one kv head, interleaved: row r is query r / group of head
// r % group. A kernel sees one such matrix per kv head whatever the GQA ratio, so short sequences
// fill the vector lanes and dk, dv are summed over the group in place.
struct GroupedRows {
  int64_t seqlen_stride = 0;  // elements
  int64_t head_stride = 0;
  int32_t group = 1;

  // Offset of row r from that of row 0, in elements.
  TILEWISE_HD constexpr int64_t offset(int64_t row) const {
    return row / group * seqlen_stride + row % group * head_stride;
  }

  // The offsets of `count` rows from `row` on, without a division for each.
  TILEWISE_HD constexpr void offsets(int64_t row, int count, int64_t* out) const {
    if (group == 1) {
      for (int i = 0; i < count; ++i) out[i] = (row + i) * seqlen_stride;
      return;
    }
    int64_t head = row % group, at = offset(row);
    for (int i = 0; i < count; ++i) {
      out[i] = at;
      at += head_stride;
      if (++head < group) continue;
      head = 0;
      at += seqlen_stride - group * head_stride;
    }
  }
};

// Keys per block of the forward: fixed, because the sum over a block is part of the result's bits.
constexpr int forward_block_n(int64_t head_dim, bool masked) {
  return head_dim <= 64 && !masked ? 128 : 64;
}

}  // namespace tilewise::cpu
