// The decode kernel: a chunk of keys for one or more kv heads. Included once per instruction set.
#include "cpu/decode_head.inl"

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

template <DType kType, int kRows>
struct Chunk {
  using H = Head<kType, kRows>;
  using T = Tile<kRows>;
  static constexpr int kBlockRun = T::kRun * H::kSteps;  // keys of a stream in a block

  const DecodeTask& task;
  H heads[kDecodeHeads];

  void run(const DecodeParams& p, DecodeScratch& scratch) {
    for (int h = 0; h < task.heads; ++h) heads[h].start(p, task, scratch, h);
    const Lengths n = task.sequence.n;
    const TileRange seen = p.mask.kv_range(0, n.q, n, 1);
    some_see(clamp(seen.begin), clamp(seen.full_begin));
    some_see(all_see(clamp(seen.full_begin), clamp(seen.full_end)), clamp(seen.end));
    for (int h = 0; h < task.heads; ++h) heads[h].store_softmax();
  }

  TILEWISE_HD int64_t clamp(int64_t key) const {
    return key < task.k_begin ? task.k_begin : key > task.k_end ? task.k_end : key;
  }

  // Keys [begin, end) that every row sees, as streams; the few that do not fill a step are left.
  // Returns where they start.
  TILEWISE_HD int64_t all_see(int64_t begin, int64_t end) {
    const int64_t stream_keys = (end - begin) / (T::kStreams * kBlockRun) * kBlockRun;
    for (int64_t i = 0; i < stream_keys; i += kBlockRun) {
      blocks(begin + i, H::kSteps, stream_keys, T::kRun, begin,
             i + kBlockRun < stream_keys ? begin + i + kBlockRun : begin + i);
    }
    begin += T::kStreams * stream_keys;
    const int steps = static_cast<int>((end - begin) / T::kStepKeys);
    if (steps > 0) blocks(begin, steps, T::kRun, T::kStepKeys, begin, begin);
    return begin + steps * T::kStepKeys;
  }

  // One block for every head; `next` is the first key of the one after it.
  TILEWISE_HD void blocks(int64_t key, int steps, int64_t stream, int64_t advance, int64_t origin,
                          int64_t next) {
    for (int h = 0; h < task.heads; ++h) {
      const bool last = h + 1 == task.heads;
      const H& after = heads[last ? 0 : h + 1];
      heads[h].block(key, steps, stream, advance, origin,
                     after.k + (last ? next : key) * after.k_row);
    }
  }

  // Keys [begin, end), of which a row may see only some.
  TILEWISE_HD void some_see(int64_t begin, int64_t end) {
    for (; begin < end; begin += H::kBlock) {
      const int keys = static_cast<int>(end - begin < H::kBlock ? end - begin : H::kBlock);
      for (int h = 0; h < task.heads; ++h) heads[h].edge_block(begin, keys);
    }
  }
};

template <DType kType, int kRows>
TILEWISE_HD void run_rows(const DecodeParams& p, const DecodeTask& task, DecodeScratch& scratch) {
  Chunk<kType, kRows> chunk{task, {}};
  chunk.run(p, scratch);
}

template <DType kType>
void run_chunk(const DecodeParams& p, const DecodeTask& task, DecodeScratch& scratch) {
  const int64_t rows = task.sequence.n.q * p.group;
  // The scalar build takes long enough with three; words are for many rows (kDecodeWordRows).
  constexpr int kTwo = kLanes >= 8 ? 2 : 4, kEight = kLanes >= 8 ? 8 : 16;
  if constexpr (Simd::kWordElements == 1) {
    if (rows == 1) return run_rows<kType, 1>(p, task, scratch);
    if (rows <= kTwo) return run_rows<kType, kTwo>(p, task, scratch);
    if (rows <= 4) return run_rows<kType, 4>(p, task, scratch);
  }
  if (rows <= kEight) return run_rows<kType, kEight>(p, task, scratch);
  run_rows<kType, 16>(p, task, scratch);
}

void decode_chunk(const DecodeParams& p, const DecodeTask& task, DecodeScratch& scratch) {
  if constexpr (Simd::kWordElements == 1) {  // words are pairs of bf16
    if (p.dtype == DType::kFp32) return run_chunk<DType::kFp32>(p, task, scratch);
    if (p.dtype == DType::kFp16) return run_chunk<DType::kFp16>(p, task, scratch);
  }
  run_chunk<DType::kBf16>(p, task, scratch);
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE

#include "cpu/decode_combine.inl"
