// The CPU forward (arXiv 2307.08691, algorithm 1): included once per instruction set.
#include <type_traits>

#include "core/planted.h"
#include "cpu/forward.h"
#include "cpu/upcoming.inl"

#include "cpu/tile.inl"

#include "cpu/pack.inl"

#include "cpu/forward_scores.inl"

#include "cpu/forward_weights.inl"

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

template <DType kType>
struct TypeTag {
  static constexpr DType kValue = kType;
};

// Calls f with the element type as a compile-time value.
template <class F>
TILEWISE_HD void with_type(DType type, const F& f) {
  if constexpr (Simd::kWordElements == 2) {
    f(TypeTag<DType::kBf16>{});
  } else if (type == DType::kFp32) {
    f(TypeTag<DType::kFp32>{});
  } else if (type == DType::kFp16) {
    f(TypeTag<DType::kFp16>{});
  } else {
    f(TypeTag<DType::kBf16>{});
  }
}

// One task: its query blocks and the packed block of keys they share.
class ForwardRun {
 public:
  ForwardRun(const ForwardParams& p, const ForwardTask& task, char* scratch)
      : task_(task),
        scratch_(scratch),
        context_{p, {kTile, p.head_dim, p.head_dim_v, p.block_n, p.query_blocks}, upcoming_},
        blocks_(reinterpret_cast<QueryBlock*>(scratch)),
        rows_q_{p.q_stride.seqlen, p.q_stride.head, p.group},
        rows_o_{p.o_stride.seqlen, p.o_stride.head, p.group} {
    const ForwardScratch& at = context_.layout;
    context_.scores = reinterpret_cast<float*>(scratch + at.scores);
    context_.weights = reinterpret_cast<Word*>(scratch + at.weights);
    const float exponent_scale = p.scale * kLog2e;
    context_.plain = p.softcap == 0 && p.alibi_slopes == nullptr && exponent_scale > 0 &&
                     exponent_scale < kInfinity;
    context_.score_scale = context_.plain ? p.scale : 1.0f;
    context_.exponent_scale = context_.plain ? exponent_scale : kLog2e;
    const int words = (p.head_dim + Simd::kWordElements - 1) / Simd::kWordElements;
    context_.depth = (words + kTileUnroll - 1) / kTileUnroll * kTileUnroll;
    context_.block_words = p.block_n / Simd::kWordElements;
  }

  void run() {
    num_blocks_ = 0;
    int64_t begin = INT64_MAX, end = 0;
    for (int64_t row = task_.row_begin; row < task_.row_end; row += kWidth) {
      const TileRange tiles = load_queries(row);
      if (tiles.empty()) continue;
      if (tiles.begin < begin) begin = tiles.begin;
      if (tiles.end > end) end = tiles.end;
    }
    for (int64_t tile = begin; tile < end; ++tile) {
      const KeyBlock keys = load_keys(tile);
      announce(tile + 1, tile + 1 < end);
      for (int i = 0; i < num_blocks_; ++i) {
        QueryBlock& block = blocks_[i];
        if (tile < block.tiles.begin || tile >= block.tiles.end) continue;
        if (block.vecs == kFullVecs) {
          attend<kFullVecs>(i, keys);
        } else if (block.vecs == 2) {
          attend<2>(i, keys);
        } else {
          attend<1>(i, keys);
        }
      }
    }
    for (int i = 0; i < num_blocks_; ++i) store_output(i);
  }

  static constexpr int kFullVecs = Simd::kForwardVecs, kWidth = kFullVecs * kLanes;
  static constexpr ForwardTile kTile = {kLanes, kFullVecs, Simd::kWordElements};
  static_assert(kFullVecs == 3);
  static constexpr int64_t kMostAnnouncedQueries = 512;
  static constexpr int kFewBlocks = 4;  // K is packed for more than these

 private:
  // Transposes the queries of the block that starts at `row` and finds the keys they see.
  TileRange load_queries(int64_t row);
  // Whether the tiles read K where it lies: packing it pays when more than a few blocks use it.
  bool keys_in_place(int rows) const;
  KeyBlock load_keys(int64_t tile);
  // Names what is needed after the tile before `tile`: its keys and values, or after the last one
  // the task's output and the next task's first inputs.
  void announce(int64_t tile, bool more);
  // S = Q K^T, P = exp2(S - reference), O += P V for one pair of blocks.
  template <int kVecs>
  void attend(int index, const KeyBlock& keys);
  // The second of these steps by way of memory, for any mask and transformation of scores.
  template <int kVecs>
  Join weigh(int index, const KeyBlock& keys, int rows);
  // A visible v that is not finite makes the output of its column so.
  void spoil_outputs(int index, const KeyBlock& keys, int rows);
  void store_output(int index);
  // Only for a planted defect.
  void round_sums(const BlockArrays& a, int width) const {
    for (int i = 0; i < context_.p.head_dim_v * width; ++i) {
      a.output[i] = context_.p.dtype == DType::kFp16 ? float_of_fp16(fp16_of_float(a.output[i]))
                                                     : float_of_bf16(bf16_of_float(a.output[i]));
    }
  }

  BlockArrays arrays(int index) const {
    const ForwardScratch& at = context_.layout;
    char* base = scratch_ + at.blocks + index * at.block_bytes;
    const int width = blocks_[index].vecs * kLanes;
    float* softmax = reinterpret_cast<float*>(base + at.softmax);
    int64_t* spans = reinterpret_cast<int64_t*>(base + at.spans);
    return {reinterpret_cast<Word*>(base + at.queries),
            reinterpret_cast<float*>(base + at.output),
            softmax,
            softmax + width,
            softmax + 2 * width,
            softmax + 3 * width,
            softmax + 4 * width,
            spans,
            spans + width,
            spans + 2 * width,
            reinterpret_cast<Word*>(base + at.block_bytes + at.queries)};
  }

  const ForwardTask& task_;
  Upcoming upcoming_;
  char* scratch_;
  Context context_;
  QueryBlock* blocks_;
  int num_blocks_ = 0;
  GroupedRows rows_q_, rows_o_;
};

// Calls f with how the tiles read the block's keys.
template <class F>
TILEWISE_HD auto with_keys(const KeyBlock& keys, const F& f) {
  if constexpr (Simd::kWordElements == 1) {
    if (keys.key_stride != 0) return f(RowsInPlace{});
  }
  return f(Panel{});
}

template <int kVecs>
void ForwardRun::attend(int index, const KeyBlock& keys) {
  QueryBlock& block = blocks_[index];
  const BlockArrays a = arrays(index);
  const bool full = block.tiles.is_full(keys.tile);
  if (full && context_.plain && block.settled && keys.finite && with_keys(keys, [&](auto left) {
        return weigh_in_registers<decltype(left), kVecs>(context_, a, keys);
      })) {
    accumulate<kVecs, Join::kAdd>(context_, a, keys, keys.rows);
    if (planted(Defect::kSixteenBitSums)) round_sums(a, block.vecs * kLanes);
    return;
  }
  const int64_t seen = block.any_end - keys.begin;
  const int last = static_cast<int>(seen < keys.rows ? seen : keys.rows);
  const int rows = (last + kRowsOf<kVecs> - 1) / kRowsOf<kVecs> * kRowsOf<kVecs>;
  switch (weigh<kVecs>(index, keys, rows)) {
    case Join::kSet:
      accumulate<kVecs, Join::kSet>(context_, a, keys, rows);
      break;
    case Join::kAdd:
      accumulate<kVecs, Join::kAdd>(context_, a, keys, rows);
      break;
    case Join::kRescale:
      accumulate<kVecs, Join::kRescale>(context_, a, keys, rows);
      break;
  }
  block.started = true;
  if (planted(Defect::kSixteenBitSums)) round_sums(a, block.vecs * kLanes);
}

template <int kVecs>
Join ForwardRun::weigh(int index, const KeyBlock& keys, int rows) {
  QueryBlock& block = blocks_[index];
  const BlockArrays a = arrays(index);
  const bool full = block.tiles.is_full(keys.tile);
  Vec highest[kVecs], sum[kVecs];
  with_keys(keys, [&](auto left) {
    raw_scores<decltype(left), kVecs>(context_, a, keys, rows, highest);
  });
  if (!context_.plain) transform_scores<kVecs>(context_, a, keys, rows);
  if (!full) hide_keys<kVecs>(context_, a, block, keys, rows);
  if (!full || !context_.plain) highest_scores<kVecs>(context_, rows, highest);
  if (!keys.finite) spoil_outputs(index, keys, rows < keys.rows ? rows : keys.rows);
  const bool moved = move_references<kVecs>(context_, a, block, highest);
  exponentiate<kVecs>(context_, a, block, rows, sum);
  TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
    const Vec before = Simd::load(a.sum + n * kLanes);
    Simd::store(a.sum + n * kLanes, Simd::fma(before, Simd::load(a.factor + n * kLanes), sum[n]));
  }
  if (!block.started) return Join::kSet;
  return moved && !planted(Defect::kMissedRescale) ? Join::kRescale : Join::kAdd;
}

void ForwardRun::spoil_outputs(int index, const KeyBlock& keys, int rows) {
  const ForwardParams& p = context_.p;
  QueryBlock& block = blocks_[index];
  const BlockArrays a = arrays(index);
  const int width = block.vecs * kLanes;
  if (!block.started) {
    for (int i = 0; i < p.head_dim_v * width; ++i) a.output[i] = 0.0f;
    block.started = true;
  }
  for (int key = 0; key < rows; ++key) {
    const float* scores = context_.scores + key * width;
    for (int x = 0; x < p.head_dim_v; ++x) {
      const float v = load_element(p.v, keys.values_from + key * p.v_stride.seqlen + x, p.dtype);
      if (v - v == 0.0f) continue;
      for (int r = 0; r < width; ++r) {
        if (scores[r] != -kInfinity) a.output[x * width + r] += v;
      }
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE

#include "cpu/forward_tensors.inl"

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

void run_forward_task(const ForwardParams& p, const ForwardTask& task, char* scratch) {
  ForwardRun(p, task, scratch).run();
}

const ForwardKernel kForwardKernel = {ForwardRun::kTile, run_forward_task};

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
