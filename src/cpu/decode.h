// The CPU decode: a forward for few query rows, where the time goes into reading K and V once.
//
// Vector lanes run along the head dimension. The query rows of all heads of a kv group are computed
// together (GroupedRows), so K and V are read once per group. The keys are cut into chunks; each
// chunk leaves an unnormalised partial result in the workspace, and combine() joins those of a
// sequence in key order. Chunks depend on the sequence's own shape only, so neither threads nor
// neighbours in the batch can change a bit.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/hd.h"
#include "core/mask.h"
#include "cpu/rows.h"

namespace tilewise::cpu {

constexpr int64_t kDecodeChunk = 1024;  // keys, counted from the start of the sequence
constexpr int kDecodeBlock = 32;        // keys between two updates of the softmax
constexpr int kDecodeRows = 16;         // most query rows of a kv head (queries x heads of a group)
// Most kv heads of one task, and most rows of them all. Where heads lie side by side a task takes
// several, so that memory is read in the order in which it lies.
constexpr int kDecodeHeads = 8, kDecodeWidth = 128;
constexpr int kDecodeScratch = 128 * 128;  // floats of all rows' queries, and of their output
// Fewest heads of a group for products in bf16 words: below, memory is the limit and fp32 reads it
// as fast or faster.
constexpr int kDecodeWordGroup = 5;
// Fewest bytes of K and V to be read in turns (decode_turns.inl). Fewer may still be in a cache
// from before, where whole blocks are faster.
constexpr int64_t kDecodeTurnsFrom = int64_t{32} << 20;
// Vectors are handled in pairs; rows of scratch are padded to the widest one's pair.
constexpr int kDecodePad = 32;

static_assert(kDecodeRows * 512 <= kDecodeScratch);  // a head always fits

// What a kernel pads the rows of a kv head to.
constexpr int padded_decode_rows(int64_t rows) {
  return rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : rows <= 8 ? 8 : kDecodeRows;
}

struct DecodeTensor {
  void* data = nullptr;  // inputs too: never written through
  int64_t batch_stride = 0, seqlen_stride = 0, head_stride = 0;  // elements
};

struct DecodeParams {
  DecodeTensor q, k, v, o;
  float* lse = nullptr;                               // optional
  int64_t lse_batch_stride = 0, lse_head_stride = 0;  // seqlen stride 1
  const float* alibi_slopes = nullptr;                // null: off
  int64_t alibi_batch_stride = 0;
  DType dtype = DType::kFp32;
  int32_t group = 1;  // query heads per kv head
  int32_t head_dim = 0, head_dim_v = 0;
  float scale = 1.0f;
  float softcap = 0.0f;  // 0: off
  MaskSpec mask;
  bool in_turns = false;  // one row a head: how K and V are read; no bit depends on it

  TILEWISE_HD constexpr int64_t padded_v() const {
    return (head_dim_v + kDecodePad - 1) / kDecodePad * kDecodePad;
  }
};

// Row r of a chunk: weights are relative to reference[r] (base 2); o is not divided by the sum.
// O follows it, in pieces of all rows: as many elements as the instruction set handles at a time.
struct alignas(64) DecodePartial {
  float reference[kDecodeRows];
  float sum[kDecodeRows];

  TILEWISE_HD float* o() { return reinterpret_cast<float*>(this + 1); }
  TILEWISE_HD static constexpr int64_t bytes(int64_t rows, int64_t padded_v) {
    return static_cast<int64_t>(sizeof(DecodePartial)) + 4 * rows * padded_v;
  }
};

// Per thread. A row of the task: head * (padded rows of a head) + row of the head.
struct alignas(64) DecodeScratch {
  float queries[kDecodeScratch];              // (rows, head_dim up to kDecodePad)
  float part[kDecodeScratch];                 // (rows, padded_v): the block's part of O
  float scores[kDecodeBlock * kDecodeWidth];  // (keys, rows up to a power of two), then the weights
  float raw[kDecodeBlock * kDecodeHeads];     // one row a head: scores before the softmax
  // Of the rows, again and again while there is room.
  float reference[kDecodeWidth], sum[kDecodeWidth];
  float factor[kDecodeWidth];                                                 // of O and the sum
  float slope[kDecodeWidth], position[kDecodeWidth], lane_key[kDecodeWidth];  // ALiBi: ScoreRule
  int64_t begin[kDecodeRows], end[kDecodeRows];  // the chunk's keys that a head's rows see
};

// One chunk of adjacent kv heads. Their partial results are `stride` bytes apart.
struct DecodeTask {
  Sequence sequence;
  int64_t kv_head = 0;
  int heads = 1;
  int64_t k_begin = 0, k_end = 0;
  DecodePartial* partial = nullptr;
  int64_t stride = 0;
};

// The partial results of one kv head, `stride` bytes apart. Their references are overwritten.
struct DecodeParts {
  Sequence sequence;
  int64_t kv_head = 0;
  DecodePartial* first = nullptr;
  int64_t count = 0, stride = 0;
};

struct DecodeKernel {
  void (*chunk)(const DecodeParams&, const DecodeTask&, DecodeScratch&);
  void (*combine)(const DecodeParams&, const DecodeParts&);  // writes o and lse
};

namespace scalar {
extern const DecodeKernel kDecodeKernel;
}
#if defined(TILEWISE_X86)
namespace avx2 {
extern const DecodeKernel kDecodeKernel;
}
namespace avx512 {
extern const DecodeKernel kDecodeKernel;
}
namespace avx512bf16 {
extern const DecodeKernel kDecodeKernel;
}
#endif

}  // namespace tilewise::cpu
