// The micro-kernel: a register tile of kRows x kVecs vectors.
namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

// Functions around a register tile stay out of line: inlined into one large caller, g++ 12 spills
// accumulators and shuffles them between registers (docs/tuning/cpu.md).
#define TILEWISE_OWN_REGISTERS __attribute__((noinline))

// Words summed before the loop counter is looked at; depths are positive multiples of it.
constexpr int kTileUnroll = 4;

// Left operands of a tile: word i of the step that they stand at.
struct Panel {  // packed: (depth, kLanes), of which a tile takes a part
  const Word* __restrict at;
  TILEWISE_HD const Word* word(int i) const { return at + i; }
  TILEWISE_HD void next() { at += kLanes; }
};
struct RowsInPlace {  // (rows, depth), rows `stride` words apart
  const Word* __restrict at;
  int64_t stride;
  TILEWISE_HD const Word* word(int i) const { return at + i * stride; }
  TILEWISE_HD void next() { ++at; }
};

// acc[i][n] = sum over k < depth, in this order, of a[k][i] * b[k][n], where a[k][i] is word i of
// step k and b[k][n] a vector of words at b + k * kVecs * kLanes + n * kLanes. bring() is called
// once per kTileUnroll words: a place for prefetches, which are free there.
template <int kRows, int kVecs, class Left, class Bring>
TILEWISE_HD void multiply(Vec (&acc)[kRows][kVecs], Left a, const Word* __restrict b, int depth,
                          Bring bring) {
  TILEWISE_UNROLL for (int i = 0; i < kRows; ++i) {
    TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) acc[i][n] = Simd::zero();
  }
  do {  // with a test before the first round g++ 12 keeps the accumulators in memory
    TILEWISE_UNROLL for (int u = 0; u < kTileUnroll; ++u) {
      Words right[kVecs];
      TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) right[n] = Simd::load_words(b + n * kLanes);
      TILEWISE_UNROLL for (int i = 0; i < kRows; ++i) {
        const Words left = Simd::broadcast_word(a.word(i));
        TILEWISE_UNROLL for (int n = 0; n < kVecs; ++n) {
          acc[i][n] = Simd::mac(left, right[n], acc[i][n]);
        }
      }
      a.next();
      b += kVecs * kLanes;
    }
    bring();
    depth -= kTileUnroll;
  } while (depth > 0);
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
