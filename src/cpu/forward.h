// The CPU forward: what its kernels receive, and the table of the kernels compiled here.
//
// A kernel computes one task at a time: a range of query rows of one (sequence, kv head). Queries
// live in the vector lanes; K and V are packed once per task, block of keys by block of keys, and
// used by all its query blocks. docs/tuning/cpu.md has the measured reasons.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/hd.h"
#include "core/mask.h"
#include "cpu/rows.h"

namespace tilewise::cpu {

struct TensorStrides {
  int64_t batch = 0, seqlen = 0, head = 0;  // elements
};

struct ForwardParams {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* o = nullptr;
  float* lse = nullptr;                 // optional
  const float* alibi_slopes = nullptr;  // null: no ALiBi
  TensorStrides q_stride, k_stride, v_stride, o_stride;
  int64_t lse_batch_stride = 0, lse_head_stride = 0;  // seqlen stride 1
  int64_t alibi_batch_stride = 0;
  DType dtype = DType::kFp32;
  int32_t group = 1;  // query heads per kv head
  int32_t head_dim = 0, head_dim_v = 0;
  int32_t block_n = 0;       // keys per block: forward_block_n()
  int32_t query_blocks = 1;  // most query blocks of one task
  float scale = 1.0f;
  float softcap = 0.0f;  // 0: off
  MaskSpec mask;
};

struct ForwardTask {
  Sequence sequence;
  int64_t kv_head = 0;
  int64_t row_begin = 0, row_end = 0;  // of the interleaved rows of the group, see GroupedRows
  const ForwardTask* next = nullptr;   // a task that probably follows on this thread: its inputs
                                       // are brought near
};

// One query block: `vecs` vectors of rows, one row per lane. Plain data at the start of a thread's
// scratch, followed by the arrays that the offsets below point to.
struct QueryBlock {
  int64_t row_begin;
  int32_t rows;  // valid ones; the other lanes are zeros
  int32_t vecs;
  bool started;     // O and the sums hold something
  bool settled;     // every lane has a reference, and one small enough for exponents in registers
  TileRange tiles;  // blocks of keys to visit
  int64_t all_begin, all_end;  // keys that every row sees
  int64_t any_end;             // end of the keys that some row sees
};

// The register tile of a kernel, which decides how its scratch is laid out.
struct ForwardTile {
  int32_t lanes;          // fp32 lanes of a vector
  int32_t vecs;           // vectors of queries in a full block
  int32_t word_elements;  // input elements of one word of a packed operand
};

// Byte offsets into the scratch of one thread.
struct ForwardScratch {
  int64_t keys;     // words (block_n / lanes, query_words, lanes)
  int64_t values;   // words (value_rows / lanes, block_n / word_elements, lanes)
  int64_t scores;   // fp32 (block_n, width)
  int64_t weights;  // words (block_n / word_elements, width); the scores' own place for fp32 words
  int64_t blocks;   // the first query block's arrays, `block_bytes` apart
  int64_t block_bytes;
  int64_t queries;  // within a block: words (query_words, width)
  int64_t output;   // fp32 (value_rows, width)
  int64_t softmax;  // fp32 (5, width): reference, sum, rescaling factor, ALiBi slope, origin
  int64_t spans;    // int64 (3, width): the keys a lane's row sees, [begin, end), and its diagonal
  int64_t bytes;    // of everything
  int32_t query_words, value_rows;  // head_dim in words, head_dim_v: both rounded up to lanes

  TILEWISE_HD constexpr ForwardScratch(const ForwardTile& tile, int64_t head_dim,
                                       int64_t head_dim_v, int64_t block_n, int64_t query_blocks)
      : keys(0),
        values(0),
        scores(0),
        weights(0),
        blocks(0),
        block_bytes(0),
        queries(0),
        output(0),
        softmax(0),
        spans(0),
        bytes(0),
        query_words(0),
        value_rows(0) {
    const int64_t words = (head_dim + tile.word_elements - 1) / tile.word_elements;
    query_words = static_cast<int32_t>(up(words, tile.lanes));
    value_rows = static_cast<int32_t>(up(head_dim_v, tile.lanes));
    const int64_t width = tile.vecs * tile.lanes;
    const int64_t block_words = block_n / tile.word_elements;

    keys = up(query_blocks * static_cast<int64_t>(sizeof(QueryBlock)), 64);
    values = keys + up(4 * block_n * query_words, 64);
    scores = values + up(4 * block_words * value_rows, 64);
    const int64_t after_scores = scores + up(4 * block_n * width, 64);
    weights = tile.word_elements == 1 ? scores : after_scores;
    blocks =
        tile.word_elements == 1 ? after_scores : after_scores + up(4 * block_words * width, 64);

    output = queries + up(4 * query_words * width, 64);
    softmax = output + up(4 * value_rows * width, 64);
    spans = softmax + up(5 * 4 * width, 64);
    block_bytes = spans + up(3 * 8 * width, 64);
    bytes = blocks + query_blocks * block_bytes;
  }

 private:
  TILEWISE_HD static constexpr int64_t up(int64_t x, int64_t multiple) {
    return (x + multiple - 1) / multiple * multiple;
  }
};

struct ForwardKernel {
  ForwardTile tile;
  void (*run)(const ForwardParams&, const ForwardTask&, char* scratch);  // scratch: 64-byte aligned
};

namespace scalar {
extern const ForwardKernel kForwardKernel;
}
#if defined(TILEWISE_X86)
namespace avx2 {
extern const ForwardKernel kForwardKernel;
}
namespace avx512 {
extern const ForwardKernel kForwardKernel;
}
namespace avx512bf16 {
extern const ForwardKernel kForwardKernel;  // bf16 only
}
#endif

}  // namespace tilewise::cpu
