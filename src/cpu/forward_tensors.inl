// Where a forward task meets the caller's tensors: queries, keys and values in, o and lse out.
namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

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
    a.reference[r] = a.origin[r] = -kInfinity;
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

bool ForwardRun::keys_in_place(int rows) const {
  const ForwardParams& p = context_.p;
  return Simd::kWordElements == 1 && p.dtype == DType::kFp32 && p.head_dim % kTileUnroll == 0 &&
         p.k_stride.seqlen > 0 && rows % kLanes == 0 && num_blocks_ <= kFewBlocks;
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
  const Word stale = values[0];
  const bool in_place = keys_in_place(rows);
  bool finite = false;
  with_type(p.dtype, [&](auto type) {
    constexpr DType kType = decltype(type)::kValue;
    if (!in_place) {
      pack_keys<kType>(keys, p.k, first(p.k_stride), p.k_stride.seqlen, rows, p.head_dim,
                       context_.layout.query_words);
    }
    finite = pack_values<kType>(values, p.v, first_v, p.v_stride.seqlen, rows, padded, p.head_dim_v,
                                context_.block_words);
    if (!finite) {
      pack_finite_values<kType>(values, p.v, first_v, p.v_stride.seqlen, rows, padded, p.head_dim_v,
                                context_.block_words);
    }
  });
  if (planted(Defect::kStaleValue) && tile > 0) values[0] = stale;
  KeyBlock block = {tile, begin, rows, finite, keys, 0, values, first_v};
  if (in_place) {
    block.keys = static_cast<const Word*>(p.k) + first(p.k_stride);
    block.key_stride = p.k_stride.seqlen;
  }
  return block;
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
    Vec sum = Simd::load(a.sum + n * kLanes);
    if (planted(Defect::kPaddedKeyCounted) && sequence.n.k % p.block_n != 0) {
      sum = Simd::add(sum, exp2(Simd::sub(Simd::zero(), Simd::load(a.reference + n * kLanes))));
    }
    const Mask empty = Simd::equal(sum, Simd::zero());
    with_type(p.dtype, [&](auto type) {
      store_rows<decltype(type)::kValue>(p.o, at + n * kLanes, a.output + n * kLanes,
                                         block.vecs * kLanes, Simd::div(Simd::set(1.0f), sum),
                                         empty, rows, p.head_dim_v);
    });
    if (p.lse == nullptr) continue;
    const Vec reference = Simd::load(a.reference + n * kLanes), ln2 = Simd::set(kLn2);
    const Vec origin = Simd::load(a.origin + n * kLanes);
    const Vec large = Simd::fma(origin, Simd::set(context_.score_scale), Simd::mul(log2(sum), ln2));
    const Vec small = Simd::mul(Simd::add(reference, log2(sum)), ln2);
    Vec lse = Simd::select(is_small(reference), small, large);
    lse = Simd::add(lse, Simd::sub(sum, sum));  // log2() does not see NaN
    alignas(64) float lanes[kLanes];
    Simd::store(lanes, Simd::select(empty, Simd::set(-kInfinity), lse));
    float* out = p.lse + sequence.batch * p.lse_batch_stride + first_head * p.lse_head_stride +
                 sequence.q_start;
    for (int r = 0; r < rows; ++r) out[at_lse[n * kLanes + r]] = lanes[r];
  }
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
