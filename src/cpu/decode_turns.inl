// One query row in each of several adjacent heads: K and V in turn, a few keys at a time. Included
// once per instruction set.
#include "cpu/decode_heads.inl"

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

// Here memory is the limit, and it is read faster in short bursts of K and V than in bursts of a
// block (docs/tuning/cpu.md). So the scores of a block are computed between the output of the one
// before. Every sum is that of Heads::block().
template <DType kType>
struct Turns {
  Heads<kType, 1>& heads;
  // Of the vector of scores that is being filled: a turn may end within it. Lanes after the last
  // key hold leftovers, which Heads::transform() replaces.
  Vec sums[kLanes][kParts<kType>] = {};

  // Keys [begin, end), which the row sees all.
  void run(int64_t begin, int64_t end) {
    if (begin >= end) return;
    int keys = keys_of(begin, end);
    heads.template scores<false>(begin, keys);
    heads.template weigh_block<false>(begin, keys);
    while (begin + kDecodeBlock < end) {
      const int64_t after = begin + kDecodeBlock;
      keys = keys_of(after, end);
      both(begin, after, keys);
      heads.template weigh_block<false>(after, keys);
      begin = after;
    }
    heads.accumulate(begin, keys);
  }

  static int keys_of(int64_t begin, int64_t end) {
    return end - begin < kDecodeBlock ? static_cast<int>(end - begin) : kDecodeBlock;
  }

  // The output of a whole block, and the raw scores of the next one, which has `keys` keys.
  __attribute__((noinline)) void both(int64_t begin, int64_t after, int keys) {
    NextRows next_k = heads.next_rows(heads.k, heads.k_head, heads.pairs.full, after);
    NextRows next_v = heads.next_rows(heads.v, heads.v_head, heads.pairs_v.full, begin);
    for (int from = 0; from < kDecodeBlock; from += heads.group_keys) {
      for (int j = from; j < from + heads.group_keys && j < keys; ++j) {
        scores_of_key(after, j, keys, next_k);
      }
      heads.accumulate_group(begin, from, kDecodeBlock, next_v);
    }
  }

  void scores_of_key(int64_t begin, int j, int keys, NextRows& next) {
    for (int h = 0; h < heads.width; ++h) {
      const int i = j * heads.width + h;
      Vec sum[kParts<kType>];
      TILEWISE_UNROLL for (int m = 0; m < kParts<kType>; ++m) sum[m] = Simd::zero();
      if (h < heads.task.heads) {
        const KeyRows key = heads.keys_from(heads.k, begin + j, h * heads.k_head);
        multiply_row<kType, 1>(heads.query(h, 0), key.first, heads.pairs, &next, sum);
      }
      TILEWISE_UNROLL for (int m = 0; m < kParts<kType>; ++m) sums[i % kLanes][m] = sum[m];
      if (i % kLanes == kLanes - 1 || i == keys * heads.width - 1) {
        Simd::store(heads.raw + i / kLanes * kLanes, total(sums));
      }
    }
  }
};

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
