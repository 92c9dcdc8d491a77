// The FlashAttention-2 backward (arXiv 2307.08691, algorithm 2) on the CPU, for one super-block of
// keys of one kv head. Included once per instruction set.
#include "core/planted.h"
#include "cpu/backward.h"

#include "cpu/backward_tile.inl"

#include "cpu/backward_pack.inl"

#include "cpu/backward_rows.inl"
#include "cpu/backward_scores.inl"

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE::backward {

constexpr BackwardTiling kTiling = {kLanes, kPanel, kPair, kBlockM};
constexpr int kMostBlocks = kBackwardMostKeys / kBlockN;  // of keys in a super-block

struct QueryBlock {
  int64_t begin;    // first row
  int rows, lanes;  // lanes: rows rounded up to whole vectors
  bool has_empty_rows;
  bool q_finite, do_finite;
  Source q, do_;
  int64_t q_offsets[kBlockM], do_offsets[kBlockM];
  int64_t query[kBlockM];  // position of each row in its sequence
};

// One task: typed views of its scratch, and the five products on them.
struct SuperBlock {
  const BackwardParams& p;
  const BackwardTask& task;
  const BackwardScratch at;
  const Lengths n;
  const int64_t k_begin, k_end;
  const QueryLanes lanes;
  const BlockBuffers block;
  bool k_finite[kMostBlocks];
  QueryBlock q;

  SuperBlock(const BackwardParams& params, const BackwardTask& t, int64_t super)
      : p(params),
        task(t),
        at(kTiling, params.most_keys, params.head_dim, params.head_dim_v),
        n(t.head.sequence.n),
        k_begin(super * t.head.super_block),
        k_end(least(n.k, k_begin + t.head.super_block)),
        lanes{lane_array(0), lane_array(1), lane_array(2), lane_array(3),
              lane_array(4), lane_array(5), lane_array(6), lane_array(7)},
        block{floats(at.p),      floats(at.ds),     words(at.p_rows),
              words(at.ds_rows), words(at.ds_keys), floats(at.cap_slope)} {}

  TILEWISE_HD float* floats(int64_t offset) const { return task.scratch + offset; }
  TILEWISE_HD Word* words(int64_t offset) const {
    return reinterpret_cast<Word*>(task.scratch + offset);
  }
  TILEWISE_HD float* lane_array(int i) const { return floats(at.lanes) + i * kBlockM; }

  void run();
  void pack_keys();
  void pack_queries(int64_t m_block);
  void row_statistics();
  void split_lse(int lane, float lse);
  void key_block(int64_t n_block, bool full);
  void set_visible(int64_t j0);
  void add_nonfinite(int64_t j0, int keys);
  void flush_dq();
  void store_dk_dv();
};

inline void SuperBlock::run() {
  pack_keys();
  const int64_t rows = task.head.rows(p.group);
  const TileRange queries = p.mask.q_range(k_begin, k_end, n, 1);
  int64_t m_block = queries.begin * p.group / kBlockM;
  int64_t m_end = round_up_div(queries.end * p.group, kBlockM);
  if (task.sink == DqSink::kOutput) m_block = 0, m_end = round_up_div(rows, kBlockM);

  for (; m_block < m_end; ++m_block) {
    pack_queries(m_block);
    const TileRange kv = p.mask.kv_range(q.query[0], q.query[q.rows - 1] + 1, n, kBlockN);
    const int64_t begin = most(kv.begin, k_begin / kBlockN);
    const int64_t end = least(kv.end, round_up_div(k_end, kBlockN));
    if (begin >= end && task.sink != DqSink::kOutput) continue;
    for (int64_t n_block = begin; n_block < end; ++n_block) key_block(n_block, kv.is_full(n_block));
    flush_dq();
  }
  store_dk_dv();
}

// P and dS of one pair of blocks, and what they add to dV, dK, dQ.
inline void SuperBlock::key_block(int64_t n_block, bool full) {
  const int64_t j0 = n_block * kBlockN - k_begin;  // within the super-block
  const int64_t local = j0 / kBlockN;
  const int keys = static_cast<int>(least(kBlockN, k_end - k_begin - j0));
  const int padded_keys = static_cast<int>(round_up(keys, kStepElements));
  const int vecs = q.lanes / kLanes;
  const bool finite = q.q_finite && q.do_finite && k_finite[local];
  const bool plain = full && finite && q.rows == q.lanes && !q.has_empty_rows &&
                     p.softcap == 0.0f && p.alibi_slopes == nullptr;

  const LeftRows k = {words(at.k_rows) + j0 * at.row_words, at.row_words};
  const LeftRows v = {words(at.v_rows) + j0 * at.row_words_v, at.row_words_v};
  const Right q_lanes = {words(at.q_lanes), at.row_words * kPanel};
  const Right do_lanes = {words(at.do_lanes), at.row_words_v * kPanel};
  const int steps = steps_of(p.head_dim), steps_v = steps_of(p.head_dim_v);
  const bool fp32 = p.dtype == DType::kFp32;  // the rounding of 16-bit results hides all this
  const int most_steps = fp32 ? kScoreSteps : steps;
  const int most_steps_v = fp32 ? kGradientSteps : steps_v;
  if (plain) {
    multiply_in_parts(k, padded_keys, steps, most_steps, q_lanes, vecs, block.p,
                      Probabilities{block, lanes, p.scale * kLog2e});
    multiply_in_parts(v, padded_keys, steps_v, most_steps_v, do_lanes, vecs, block.ds,
                      ScoreGradients{block, lanes});
  } else {
    set_visible(n_block * kBlockN);
    multiply_in_parts(k, padded_keys, steps, most_steps, q_lanes, vecs, block.p,
                      StoreBlock{block.p});
    probabilities_pass(p, lanes, block, padded_keys, q.lanes);
    multiply_in_parts(v, padded_keys, steps_v, most_steps_v, do_lanes, vecs, block.ds,
                      StoreBlock{block.ds});
    score_gradients_pass(p, lanes, block, padded_keys, q.lanes);
  }

  const LeftRows p_rows = {block.p_rows, kBlockM / kPair};
  const LeftRows ds_rows = {block.ds_rows, kBlockM / kPair};
  const LeftColumns ds_columns = {block.ds_keys};
  const Right do_panels = {words(at.do_blocks), at.q_panel};
  const Right q_panels = {words(at.q_blocks), at.q_panel};
  const Right k_panels = {words(at.k_blocks) + local * at.k_panels, at.k_panel};
  const int width = static_cast<int>(at.width / kLanes),
            width_v = static_cast<int>(at.width_v / kLanes);
  multiply(p_rows, padded_keys, steps_of(q.rows), do_panels, width_v,
           Accumulate{floats(at.dv) + j0 * at.width_v, at.width_v});
  multiply(ds_rows, padded_keys, steps_of(q.rows), q_panels, width,
           Accumulate{floats(at.dk) + j0 * at.width, at.width});
  multiply(ds_columns, (q.rows + 1) / 2 * 2, padded_keys / kPair, k_panels, width,
           Accumulate{floats(at.dq), at.width});
  if (!finite) add_nonfinite(j0, keys);
}

inline void SuperBlock::pack_keys() {
  const int64_t keys = k_end - k_begin;
  const int64_t padded = round_up(keys, kBlockN);
  zero_floats(floats(at.dk), padded * at.width);
  zero_floats(floats(at.dv), padded * at.width_v);
  const HeadRows k = key_rows(p, task.head, p.k, p.head_dim);
  const HeadRows v = key_rows(p, task.head, p.v, p.head_dim_v);
  for (int64_t j0 = 0; j0 < keys; j0 += kBlockN) {
    int64_t offsets[kBlockN];
    const int rows = static_cast<int>(least(kBlockN, keys - j0));
    Word* panels = words(at.k_blocks) + j0 / kBlockN * at.k_panels;
    bool finite = true;
    with_dtype(p.dtype, [&]<DType kType>(Typed<kType>) {
      const Source values = v.source(k_begin + j0, rows, offsets);
      pack_rows<kType>(values, rows, kBlockN, at.row_words_v,
                       words(at.v_rows) + j0 * at.row_words_v);
      const Source key = k.source(k_begin + j0, rows, offsets);
      pack_rows<kType>(key, rows, kBlockN, at.row_words, words(at.k_rows) + j0 * at.row_words);
      finite = pack_panels<kType>(key, rows, kBlockN, panels, at.k_panel);
    });
    k_finite[j0 / kBlockN] = finite;
    if (!finite) zero_nonfinite(panels, at.k_panels);
  }
}

inline void SuperBlock::pack_queries(int64_t m_block) {
  q.begin = m_block * kBlockM;
  q.rows = static_cast<int>(least(kBlockM, task.head.rows(p.group) - q.begin));
  q.lanes = static_cast<int>(round_up(q.rows, kLanes));
  q.q = query_rows(p, task.head, p.q, p.head_dim).source(q.begin, q.rows, q.q_offsets);
  q.do_ = query_rows(p, task.head, p.do_, p.head_dim_v).source(q.begin, q.rows, q.do_offsets);
  const int padded = static_cast<int>(round_up(q.rows, kStepElements));
  const Word stale = *words(at.do_blocks);
  with_dtype(p.dtype, [&]<DType kType>(Typed<kType>) {
    q.q_finite = pack_panels<kType>(q.q, q.rows, padded, words(at.q_blocks), at.q_panel);
    q.do_finite = pack_panels<kType>(q.do_, q.rows, padded, words(at.do_blocks), at.q_panel);
    pack_lanes<kType>(q.q, q.rows, at.row_words, words(at.q_lanes));
    pack_lanes<kType>(q.do_, q.rows, at.row_words_v, words(at.do_lanes));
  });
  if (planted(Defect::kStaleOutputGradient) && m_block > 0) *words(at.do_blocks) = stale;
  if (!q.q_finite) zero_nonfinite(words(at.q_blocks), at.do_blocks - at.q_blocks);
  if (!q.do_finite) zero_nonfinite(words(at.do_blocks), at.p - at.do_blocks);
  row_statistics();
  zero_floats(floats(at.dq), kBlockM * at.width);
}

inline void SuperBlock::row_statistics() {
  const Sequence& s = task.head.sequence;
  q.has_empty_rows = false;
  for (int i = 0; i < q.lanes; ++i) {
    split_lse(i, __builtin_inff());
    lanes.delta[i] = lanes.slope[i] = 0.0f;
    if (i >= q.rows) continue;
    const int64_t row = q.begin + i;
    const int64_t head = task.head.kv_head * p.group + row % p.group;
    q.query[i] = row / p.group;
    const float lse =
        p.lse[s.batch * p.lse_batch_stride + head * p.lse_head_stride + s.q_start + q.query[i]];
    if (lse == -__builtin_inff()) {  // an empty row: weights and gradients 0
      q.has_empty_rows = true;
      continue;
    }
    split_lse(i, lse);
    lanes.delta[i] = planted(Defect::kDeltaOmitted) ? 0.0f : task.head.delta[row];
    if (p.alibi_slopes != nullptr) {
      lanes.slope[i] =
          p.alibi_slopes[task.head.slopes_batch * p.alibi_batch_stride + head] * kLog2e;
    }
  }
}

inline void SuperBlock::split_lse(int i, float lse) {
  constexpr double kLog2eFp64 = 1.44269504088896341;
  const double log2 = lse * kLog2eFp64;
  // Any integer near will do; a NaN or what is too large for the trick is not split.
  const bool split = -kExp2MostWhole <= log2 && log2 <= kExp2MostWhole;
  const int whole = split ? static_cast<int>(log2) : 0;
  lanes.lse[i] = static_cast<float>(log2 - whole);
  lanes.lowest[i] = kExp2Lowest + static_cast<float>(whole);
  lanes.round[i] = kExp2Round - static_cast<float>(whole);
}

// The visible keys of each lane in the block of keys at j0, relative to it.
inline void SuperBlock::set_visible(int64_t j0) {
  for (int i = 0; i < q.lanes; ++i) {
    lanes.key_begin[i] = lanes.key_end[i] = lanes.diagonal[i] = 0.0f;
    if (i >= q.rows || lanes.lse[i] == __builtin_inff()) continue;
    const Span keys = p.mask.keys_of(q.query[i], n);
    lanes.key_begin[i] = static_cast<float>(most(0, least(keys.begin - j0, kBlockN)));
    lanes.key_end[i] = static_cast<float>(most(0, least(keys.end - j0, kBlockN)));
    lanes.diagonal[i] = static_cast<float>(q.query[i] + p.mask.diagonal(n) - j0);
  }
}

// The products of visible pairs with the elements that zero_nonfinite() took out.
inline void SuperBlock::add_nonfinite(int64_t j0, int keys) {
  const auto sees = [&](int row, int key) {
    const float j = static_cast<float>(key);
    return lanes.key_begin[row] <= j && j < lanes.key_end[row];
  };
  const auto ds = [&](int row, int key) {
    if constexpr (kPair == 2) {
      const uint16_t* rows = reinterpret_cast<const uint16_t*>(block.ds_rows);
      return float_of_bf16(rows[key * kBlockM + row]);
    } else {
      return block.ds[key * kBlockM + row];
    }
  };
  float* dq = floats(at.dq);
  float* dk = floats(at.dk) + j0 * at.width;
  float* dv = floats(at.dv) + j0 * at.width_v;
  for_each_nonfinite(q.do_, q.rows, [&](int row, int64_t x, float value) {
    for (int j = 0; j < keys; ++j) {
      if (sees(row, j)) dv[j * at.width_v + x] += block.p[j * kBlockM + row] * value;
    }
  });
  for_each_nonfinite(q.q, q.rows, [&](int row, int64_t x, float value) {
    for (int j = 0; j < keys; ++j) {
      if (sees(row, j)) dk[j * at.width + x] += ds(row, j) * value;
    }
  });
  int64_t offsets[kBlockN];
  const HeadRows k = key_rows(p, task.head, p.k, p.head_dim);
  for_each_nonfinite(k.source(k_begin + j0, keys, offsets), keys,
                     [&](int key, int64_t x, float value) {
                       for (int row = 0; row < q.rows; ++row) {
                         if (sees(row, key)) dq[row * at.width + x] += ds(row, key) * value;
                       }
                     });
}

// Hands this super-block's contribution to dq of the current rows on.
inline void SuperBlock::flush_dq() {
  const float* from = floats(at.dq);
  if (task.sink == DqSink::kOutput) {
    int64_t offsets[kBlockM];
    const HeadRows dq = query_rows(p, task.head, p.dq, p.head_dim);
    store_rows(dq.source(q.begin, q.rows, offsets), q.rows, from, at.width, p.scale);
    return;
  }
  if (planted(Defect::kDqPartialDropped) && k_end == n.k) {
    zero_floats(floats(at.dq), kBlockM * at.width);
  }
  float* to = task.dq + q.begin * at.width;
  const bool add = task.sink == DqSink::kAccumulate;
  for (int64_t i = 0; i < q.rows * at.width; i += kLanes) {
    const Vec value = Simd::load(from + i);
    Simd::store(to + i, add ? Simd::add(Simd::load(to + i), value) : value);
  }
}

inline void SuperBlock::store_dk_dv() {
  const HeadRows dk = key_rows(p, task.head, p.dk, p.head_dim);
  const HeadRows dv = key_rows(p, task.head, p.dv, p.head_dim_v);
  for (int64_t j0 = 0; j0 < k_end - k_begin; j0 += kBlockN) {
    int64_t offsets[kBlockN];
    const int rows = static_cast<int>(least(kBlockN, k_end - k_begin - j0));
    store_rows(dk.source(k_begin + j0, rows, offsets), rows, floats(at.dk) + j0 * at.width,
               at.width, p.scale);
    store_rows(dv.source(k_begin + j0, rows, offsets), rows, floats(at.dv) + j0 * at.width_v,
               at.width_v, 1.0f);
  }
}

inline void super_blocks(const BackwardParams& p, const BackwardTask& task) {
  if (task.sink == DqSink::kAccumulate) {
    zero_floats(task.dq, task.head.rows(p.group) * round_up(p.head_dim, kLanes));
  }
  for (int64_t super = task.super_begin; super < task.super_end; ++super) {
    SuperBlock(p, task, super).run();
  }
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE::backward

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {
constexpr BackwardKernels kBackwardKernels = {backward::kTiling, backward::delta,
                                              backward::super_blocks, backward::reduce};
}
