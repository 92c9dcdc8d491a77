// The decode kernel: a chunk of keys for one or more kv heads. Included once per instruction set.
#include "cpu/decode_turns.inl"

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

template <DType kType, int kRows>
struct Chunk {
  const DecodeTask& task;
  Heads<kType, kRows> heads;

  void run(const MaskSpec& mask) {
    const Lengths n = task.sequence.n;
    const TileRange seen = mask.kv_range(0, n.q, n, 1);
    blocks<true>(clamp(seen.begin), clamp(seen.full_begin));
    blocks<false>(clamp(seen.full_begin), clamp(seen.full_end));
    blocks<true>(clamp(seen.full_end), clamp(seen.end));
    heads.store_softmax();
  }

  int64_t clamp(int64_t key) const {
    return key < task.k_begin ? task.k_begin : key > task.k_end ? task.k_end : key;
  }

  // Keys [begin, end). kEdge: of which a row may see only some.
  template <bool kEdge>
  void blocks(int64_t begin, int64_t end) {
    if constexpr (!kEdge && kRows == 1) {
      if (heads.in_turns) return Turns<kType>{heads}.run(begin, end);
    }
    for (; begin < end; begin += kDecodeBlock) {
      const int64_t left = end - begin;
      heads.template block<kEdge>(begin,
                                  static_cast<int>(left < kDecodeBlock ? left : kDecodeBlock));
    }
  }
};

template <DType kType, int kRows>
void run_rows(const DecodeParams& p, const DecodeTask& task, DecodeScratch& scratch) {
  Chunk<kType, kRows> chunk{task, {p, task, scratch}};
  chunk.run(p.mask);
}

template <DType kType>
void run_chunk(const DecodeParams& p, const DecodeTask& task, DecodeScratch& scratch) {
  const int rows = padded_decode_rows(task.sequence.n.q * p.group);
  if (rows == 16) return run_rows<kType, 16>(p, task, scratch);
  if (rows == 8) return run_rows<kType, 8>(p, task, scratch);
  if (rows == 4) return run_rows<kType, 4>(p, task, scratch);
  if (rows == 2) return run_rows<kType, 2>(p, task, scratch);
  run_rows<kType, 1>(p, task, scratch);
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
