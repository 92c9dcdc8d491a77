// The CPU backward: what its driver (backward.cc) hands to the kernels of one instruction set
// (backward.inl). Plain data and constants, the same in every file that includes it.
//
// Delta = rowsum(dO o O) comes first. A task is then a super-block of keys of one kv head (or all
// of them in turn): it owns the dk and dv of its keys and gives one fp32 contribution to dq per
// super-block. Contributions are added in the order of the super-blocks whoever computed them, so
// no result depends on the number of threads.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/hd.h"
#include "core/mask.h"
#include "cpu/rows.h"

namespace tilewise::cpu {

// Part of the results' bits: sums start at 0 in every block, and dq in every super-block.
constexpr int kBackwardBlockN = 64;      // keys per block
constexpr int kBackwardMostKeys = 1024;  // of a super-block

// Keys whose K, V, dk and dv a task holds at once. Long super-blocks pack q and dO less often: 1024
// against 512 is 2 to 5 % of the speed; but there should be two of them for two threads, and under
// a mask, where the first may have most of the work, four.
TILEWISE_HD constexpr int64_t backward_long_sequence(const MaskSpec& mask) {
  return mask.is_full() ? 2 * kBackwardMostKeys : 4 * kBackwardMostKeys;
}
TILEWISE_HD constexpr int64_t backward_super_block(const MaskSpec& mask, int64_t seqlen_k) {
  return seqlen_k >= backward_long_sequence(mask) ? kBackwardMostKeys : kBackwardMostKeys / 2;
}

// How an instruction set cuts the blocks; constants, so that a plan needs no code of that set.
struct BackwardTiling {
  int lanes = 0;          // fp32 values per vector
  int panel = 0;          // lanes of a register tile: width of the packed right operands
  int word_elements = 0;  // elements of a word (Simd::Word)
  int block_m = 0;        // query rows per block
};

struct BackwardTensor {
  void* data = nullptr;  // inputs too: never written through
  int64_t batch_stride = 0, seqlen_stride = 0, head_stride = 0;  // elements
};

struct BackwardParams {
  DType dtype = DType::kFp32;
  int32_t group = 1;  // query heads per kv head
  int64_t head_dim = 0, head_dim_v = 0;
  int64_t most_keys = 0;  // of a super-block of this call: sizes the scratch
  MaskSpec mask;
  float scale = 0.0f;
  float softcap = 0.0f;  // 0: off
  BackwardTensor q, k, v, o, do_, dq, dk, dv;
  const float* lse = nullptr;
  int64_t lse_batch_stride = 0, lse_head_stride = 0;
  const float* alibi_slopes = nullptr;  // null: off
  int64_t alibi_batch_stride = 0;
};

// One kv head of one sequence. Its query rows are those of all heads of the group, interleaved
// (GroupedRows).
struct BackwardHead {
  Sequence sequence;
  int64_t slopes_batch = 0;  // index of the sequence, varlen or not
  int64_t kv_head = 0;
  int64_t super_block = 0, num_super_blocks = 1;  // keys of each; one at least, to write the zeros
  float* delta = nullptr;                         // (rows)

  TILEWISE_HD constexpr int64_t rows(int32_t group) const { return sequence.n.q * group; }
};

enum class DqSink : int32_t {
  kOutput,      // there is one super-block: straight to dq
  kAccumulate,  // the task runs all super-blocks of the head: add to BackwardTask::dq
  kPartial,     // BackwardTask::dq is this super-block's own; BackwardKernels::reduce adds them
};

struct BackwardTask {
  BackwardHead head;
  int64_t super_begin = 0, super_end = 0;
  DqSink sink = DqSink::kOutput;
  float* dq = nullptr;       // (rows, round_up(head_dim, lanes))
  float* scratch = nullptr;  // BackwardScratch::size, 64-byte aligned
};

// For the rows [row_begin, row_end) of a head, row_begin a multiple of block_m: adds the partials
// of the super-blocks [super_begin, super_end) that saw them to `sum`, or to 0 without one, and
// stores the result in `sum`, or times the scale in dq.
struct BackwardReduction {
  BackwardHead head;
  int64_t row_begin = 0, row_end = 0;
  const float* partials = nullptr;  // of super_begin; the next ones lie partial_stride apart
  int64_t partial_stride = 0;
  int64_t super_begin = 0, super_end = 0;
  float* sum = nullptr;
  bool from_sum = false, to_sum = false;
};

struct BackwardKernels {
  BackwardTiling tiling;
  // delta of the rows [row_begin, row_end).
  void (*delta)(const BackwardParams&, const BackwardHead&, int64_t row_begin, int64_t row_end);
  // dk and dv of the super-blocks of the task, and their contributions to dq.
  void (*super_blocks)(const BackwardParams&, const BackwardTask&);
  void (*reduce)(const BackwardParams&, const BackwardReduction&);
};

namespace scalar {
extern const BackwardKernels kBackwardKernels;
}
namespace avx2 {
extern const BackwardKernels kBackwardKernels;
}
namespace avx512 {
extern const BackwardKernels kBackwardKernels;
}
namespace avx512bf16 {
extern const BackwardKernels kBackwardKernels;
}

TILEWISE_HD constexpr int64_t round_up(int64_t x, int64_t unit) {
  return (x + unit - 1) / unit * unit;
}
TILEWISE_HD constexpr int64_t round_up_div(int64_t x, int64_t unit) {
  return (x + unit - 1) / unit;
}

// Where a task's buffers lie in its scratch, in units of 4 bytes: words and fp32 values alike.
// Left operands are rows of words, right operands panels of (steps, panel) words.
struct BackwardScratch {
  int64_t row_words = 0, row_words_v = 0;  // words per packed row of K or Q, of V or dO
  int64_t width = 0, width_v = 0;          // fp32 values per row of dq and dk, of dv
  int64_t k_panel = 0, q_panel = 0;        // words per panel of a block of K, of Q and dO
  int64_t k_panels = 0;                    // words per block of K

  int64_t k_rows = 0, v_rows = 0;       // (super-block, row_words)
  int64_t k_blocks = 0;                 // per block of keys (head_dim / panel, keys, panel)
  int64_t dk = 0, dv = 0;               // (super-block, width)
  int64_t q_lanes = 0, do_lanes = 0;    // (block_m / panel, row_words, panel)
  int64_t q_blocks = 0, do_blocks = 0;  // (head_dim / panel, queries, panel)
  int64_t p = 0, p_rows = 0;            // (block_n, block_m) fp32; rounded to words along the rows
  int64_t ds = 0, ds_rows = 0, ds_keys = 0;  // the same; ds_keys has its words along the keys
  int64_t cap_slope = 0;                     // (block_n, block_m): derivative of the softcap
  int64_t dq = 0;                            // (block_m, width)
  int64_t lanes = 0;                         // kLaneArrays x (block_m): see QueryBlock
  int64_t size = 0;

  static constexpr int kLaneArrays = 8;

  TILEWISE_HD constexpr BackwardScratch(const BackwardTiling& t, int64_t keys, int64_t d,
                                        int64_t d_v) {
    row_words = round_up(round_up_div(d, t.word_elements), t.lanes);
    row_words_v = round_up(round_up_div(d_v, t.word_elements), t.lanes);
    width = round_up(d, t.lanes);
    width_v = round_up(d_v, t.lanes);
    k_panel = static_cast<int64_t>(kBackwardBlockN / t.word_elements) * t.panel;
    q_panel = static_cast<int64_t>(t.block_m / t.word_elements) * t.panel;
    k_panels = round_up_div(d, t.panel) * k_panel;
    const int64_t block = static_cast<int64_t>(kBackwardBlockN) * t.block_m;
    const int64_t block_words = block / t.word_elements;
    const int64_t q_lane_words = round_up(t.block_m, t.panel);
    k_rows = take(keys * row_words);
    v_rows = take(keys * row_words_v);
    k_blocks = take(keys / kBackwardBlockN * k_panels);
    dk = take(keys * width);
    dv = take(keys * width_v);
    q_lanes = take(q_lane_words * row_words);
    do_lanes = take(q_lane_words * row_words_v);
    q_blocks = take(round_up_div(d, t.panel) * q_panel);
    do_blocks = take(round_up_div(d_v, t.panel) * q_panel);
    p = take(block);
    ds = take(block);
    const bool paired = t.word_elements == 2;  // else the fp32 blocks are the words
    p_rows = paired ? take(block_words) : p;
    ds_rows = paired ? take(block_words) : ds;
    ds_keys = paired ? take(block_words) : ds;
    cap_slope = take(block);
    dq = take(t.block_m * width);
    lanes = take(kLaneArrays * t.block_m);
  }

 private:
  TILEWISE_HD constexpr int64_t take(int64_t words) {
    const int64_t at = size;
    size += round_up(words, 16);
    return at;
  }
};

}  // namespace tilewise::cpu
