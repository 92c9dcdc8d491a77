// The CPU forward (arXiv 2307.08691, algorithm 1): included once per instruction set.
#include "cpu/forward.h"
#include "cpu/upcoming.inl"

#include "cpu/tile.inl"

#include "cpu/pack.inl"

#include "cpu/forward_softmax.inl"

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
    context_.exponent_scale = context_.plain ? exponent_scale : 1.0f;
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
        if (block.vecs == kVecs) {
          attend<kVecs>(i, keys);
        } else if (block.vecs == 2) {
          attend<2>(i, keys);
        } else {
          attend<1>(i, keys);
        }
      }
    }
    for (int i = 0; i < num_blocks_; ++i) store_output(i);
  }

  static constexpr int kVecs = Simd::kForwardVecs, kWidth = kVecs * kLanes;
  static constexpr ForwardTile kTile = {kLanes, kVecs, Simd::kWordElements};
  static_assert(kVecs == 3);
  static constexpr int64_t kMostAnnouncedQueries = 512;

 private:
  // Transposes the queries of the block that starts at `row` and finds the keys they see.
  TileRange load_queries(int64_t row);
  KeyBlock load_keys(int64_t tile);
  // Names what is needed after the tile before `tile`: its keys and values, or after the last one
  // the task's output and the next task's first inputs.
  void announce(int64_t tile, bool more);
  // S = Q K^T, P = exp2(S - reference), O += P V for one pair of blocks.
  template <int kVecs>
  void attend(int index, const KeyBlock& keys);
  // A visible v that is not finite makes the output of its column so.
  void spoil_outputs(int index, const KeyBlock& keys, int rows);
  void store_output(int index);

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

TileRange ForwardRun::load_queries(int64_t row) {
  const ForwardParams& p = context_.p;
  const Sequence& sequence = task_.sequence;
  const int index = num_blocks_++;
  QueryBlock& block = blocks_[index];
  block = {};
  block.row_begin = row;
  block.rows = static_cast<int32_t>(task_.row_end - row < kWidth ? task_.row_end - row : kWidth);
  block.vecs = (block.rows + kLanes - 1) / kLanes;
  const BlockArrays a = arrays(index);

  const int64_t first = sequence.batch * p.q_stride.batch + sequence.q_start * p.q_stride.seqlen +
                        task_.kv_head * p.group * p.q_stride.head;
  int64_t at[kWidth];
  rows_q_.offsets(row, block.rows, at);
  for (int r = 0; r < block.rows; ++r) at[r] += first;
  with_type(p.dtype, [&](auto type) {
    for (int n = 0; n < block.vecs; ++n) {
      transpose_rows<decltype(type)::kValue>(a.queries + n * kLanes, block.vecs * kLanes, p.q,
                                             at + n * kLanes, block.rows - n * kLanes, p.head_dim,
                                             context_.layout.query_words);
    }
  });

  const Lengths lengths = sequence.n;
  const int64_t head_first = task_.kv_head * p.group;
  int64_t query = row / p.group, head = row % p.group;
  const int64_t query_last = (row + block.rows - 1) / p.group;
  block.tiles = p.mask.kv_range(query, query_last + 1, lengths, p.block_n);
  block.all_begin = p.mask.keys_of(query_last, lengths).begin;
  block.all_end = p.mask.keys_of(query, lengths).end;
  block.any_end = p.mask.keys_of(query_last, lengths).end;
  for (int r = 0; r < block.vecs * kLanes; ++r) {
    a.reference[r] = -kInfinity;
    a.sum[r] = 0.0f;
  }
  if (p.mask.is_full() && p.alibi_slopes == nullptr) return block.tiles;  // all rows are alike
  for (int r = 0; r < block.vecs * kLanes; ++r) {
    const Span keys = p.mask.keys_of(query, lengths);
    a.visible_begin[r] = keys.begin;
    a.visible_end[r] = keys.end;
    a.diagonal[r] = query + p.mask.diagonal(lengths);
    a.slope[r] = p.alibi_slopes == nullptr
                     ? 0.0f
                     : p.alibi_slopes[sequence.batch * p.alibi_batch_stride + head_first + head];
    if (r + 1 < block.rows && ++head == p.group) head = 0, ++query;  // spare lanes: the last row
  }
  return block.tiles;
}

KeyBlock ForwardRun::load_keys(int64_t tile) {
  const ForwardParams& p = context_.p;
  const Sequence& sequence = task_.sequence;
  const int64_t begin = tile * p.block_n;
  const int64_t left = sequence.n.k - begin;
  const int rows = static_cast<int>(left < p.block_n ? left : p.block_n);
  const int padded = (rows + kLanes - 1) / kLanes * kLanes;
  Word* keys = reinterpret_cast<Word*>(scratch_ + context_.layout.keys);
  Word* values = reinterpret_cast<Word*>(scratch_ + context_.layout.values);
  const auto first = [&](const TensorStrides& s) {
    return sequence.batch * s.batch + (sequence.k_start + begin) * s.seqlen +
           task_.kv_head * s.head;
  };
  const int64_t first_v = first(p.v_stride);
  bool finite = false;
  with_type(p.dtype, [&](auto type) {
    constexpr DType kType = decltype(type)::kValue;
    pack_keys<kType>(keys, p.k, first(p.k_stride), p.k_stride.seqlen, rows, p.head_dim,
                     context_.layout.query_words);
    finite = pack_values<kType>(values, p.v, first_v, p.v_stride.seqlen, rows, padded, p.head_dim_v,
                                context_.block_words);
    if (!finite) {
      pack_finite_values<kType>(values, p.v, first_v, p.v_stride.seqlen, rows, padded, p.head_dim_v,
                                context_.block_words);
    }
  });
  return {tile, begin, rows, finite, keys, values, first_v};
}

void ForwardRun::announce(int64_t tile, bool more) {
  const ForwardParams& p = context_.p;
  const int64_t size = size_of(p.dtype);
  upcoming_.clear();
  const auto add = [&](const void* base, const TensorStrides& s, int64_t batch, int64_t seqlen,
                       int64_t head, int64_t rows, int64_t elements) {
    const int64_t first = batch * s.batch + seqlen * s.seqlen + head * s.head;
    upcoming_.add(static_cast<const char*>(base) + first * size, s.seqlen * size, rows,
                  elements * size);
  };
  const auto add_keys = [&](const ForwardTask& t, int64_t key) {
    const int64_t left = t.sequence.n.k - key;
    const int64_t rows = left < p.block_n ? left : p.block_n;
    const int64_t first = t.sequence.k_start + key;
    add(p.k, p.k_stride, t.sequence.batch, first, t.kv_head, rows, p.head_dim);
    add(p.v, p.v_stride, t.sequence.batch, first, t.kv_head, rows, p.head_dim_v);
  };
  const auto add_queries = [&](const ForwardTask& t, const void* base, const TensorStrides& s,
                               int64_t dim) {
    const int64_t query = t.row_begin / p.group;
    int64_t rows = (t.row_end - 1) / p.group + 1 - query;
    if (rows > kMostAnnouncedQueries) rows = kMostAnnouncedQueries;
    add(base, s, t.sequence.batch, t.sequence.q_start + query, t.kv_head * p.group, rows,
        s.head == dim ? dim * p.group : dim);
  };
  if (more) {
    add_keys(task_, tile * p.block_n);
  } else {
    add_queries(task_, p.o, p.o_stride, p.head_dim_v);
    if (task_.next != nullptr) {
      const ForwardTask& next = *task_.next;
      add_queries(next, p.q, p.q_stride, p.head_dim);
      const int64_t query = next.row_begin / p.group;
      const int64_t key = p.mask.keys_of(query, next.sequence.n).begin;
      add_keys(next, key / p.block_n * p.block_n);
    }
  }
}

template <int kVecs>
void ForwardRun::attend(int index, const KeyBlock& keys) {
  QueryBlock& block = blocks_[index];
  const BlockArrays a = arrays(index);
  const bool full = block.tiles.is_full(keys.tile);
  if (full && context_.plain && block.settled && keys.finite &&
      weigh_in_registers<kVecs>(context_, a, keys)) {
    accumulate<kVecs, Join::kAdd>(context_, a, keys, keys.rows);
    return;
  }

  const int64_t seen = block.any_end - keys.begin;
  const int last = static_cast<int>(seen < keys.rows ? seen : keys.rows);
  const int rows = (last + kRowsOf<kVecs> - 1) / kRowsOf<kVecs> * kRowsOf<kVecs>;
  Vec highest[kVecs], sum[kVecs];
  raw_scores<kVecs>(context_, a, keys, rows, highest);
  if (!context_.plain) transform_scores<kVecs>(context_, a, keys, rows);
  if (!full) hide_keys<kVecs>(context_, a, block, keys, rows);
  if (!full || !context_.plain) highest_scores<kVecs>(context_, rows, highest);
  if (!keys.finite) spoil_outputs(index, keys, last);
  const bool moved = move_references<kVecs>(context_, a, block, highest);
  exponentiate<kVecs>(context_, a, rows, sum);
  TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
    const Vec before = Simd::load(a.sum + n * kLanes);
    Simd::store(a.sum + n * kLanes, Simd::fma(before, Simd::load(a.factor + n * kLanes), sum[n]));
  }
  if (!block.started) {
    accumulate<kVecs, Join::kSet>(context_, a, keys, rows);
  } else if (moved) {
    accumulate<kVecs, Join::kRescale>(context_, a, keys, rows);
  } else {
    accumulate<kVecs, Join::kAdd>(context_, a, keys, rows);
  }
  block.started = true;
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
        if (scores[r] * context_.exponent_scale != -kInfinity) a.output[x * width + r] += v;
      }
    }
  }
}

void ForwardRun::store_output(int index) {
  const ForwardParams& p = context_.p;
  const Sequence& sequence = task_.sequence;
  const QueryBlock& block = blocks_[index];
  const BlockArrays a = arrays(index);
  const int64_t first_head = task_.kv_head * p.group;
  const int64_t first = sequence.batch * p.o_stride.batch + sequence.q_start * p.o_stride.seqlen +
                        first_head * p.o_stride.head;
  int64_t at[kWidth], at_lse[kWidth];
  rows_o_.offsets(block.row_begin, block.rows, at);
  GroupedRows{1, p.lse_head_stride, p.group}.offsets(block.row_begin, block.rows, at_lse);
  for (int r = 0; r < block.rows; ++r) at[r] += first;
  for (int n = 0; n < block.vecs; ++n) {
    const int rows = block.rows - n * kLanes < kLanes ? block.rows - n * kLanes : kLanes;
    const Vec sum = Simd::load(a.sum + n * kLanes);
    const Mask empty = Simd::equal(sum, Simd::zero());
    with_type(p.dtype, [&](auto type) {
      store_rows<decltype(type)::kValue>(p.o, at + n * kLanes, a.output + n * kLanes,
                                         block.vecs * kLanes, Simd::div(Simd::set(1.0f), sum),
                                         empty, rows, p.head_dim_v);
    });
    if (p.lse == nullptr) continue;
    const Vec reference = Simd::load(a.reference + n * kLanes);
    Vec lse = Simd::mul(Simd::add(reference, log2(sum)), Simd::set(kLn2));
    lse = Simd::add(lse, Simd::sub(sum, sum));  // log2() does not see NaN
    alignas(64) float lanes[kLanes];
    Simd::store(lanes, Simd::select(empty, Simd::set(-kInfinity), lse));
    float* out = p.lse + sequence.batch * p.lse_batch_stride + first_head * p.lse_head_stride +
                 sequence.q_start;
    for (int r = 0; r < rows; ++r) out[at_lse[n * kLanes + r]] = lanes[r];
  }
}

void run_forward_task(const ForwardParams& p, const ForwardTask& task, char* scratch) {
  ForwardRun(p, task, scratch).run();
}

extern const ForwardKernel kForwardKernel;
const ForwardKernel kForwardKernel = {ForwardRun::kTile, run_forward_task};

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
