// The micro-kernel of the backward: c(i, lanes) = sum over steps of a(i, step) * b(step, lanes), in
// register tiles of kBackwardRows rows by kBackwardVecs vectors, and what becomes of a finished
// tile. All five products of the backward are this one with other operands.
#include <cstddef>

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE::backward {

constexpr int kRows = Simd::kBackwardRows;
constexpr int kVecs = Simd::kBackwardVecs;
constexpr int kPanel = kVecs * kLanes;
constexpr int kStepUnroll = 4;  // steps are padded with zeros to this
constexpr int kPair = Simd::kWordElements;
constexpr int kBlockN = kBackwardBlockN;
constexpr int kBlockM = kPair == 2 ? 128 : 64;
constexpr int kStepElements = kStepUnroll * kPair;  // what a summed dimension is padded to
// Most steps in a sum of Q K^T and of V dO^T, fp32: docs/tuning/cpu.md.
constexpr int kScoreSteps = 32, kGradientSteps = 64;

TILEWISE_HD int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TILEWISE_HD int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
TILEWISE_HD int steps_of(int64_t elements) {
  return static_cast<int>(round_up(elements, kStepElements) / kPair);
}

TILEWISE_HD void zero_floats(float* to, int64_t count) {
  __builtin_memset(to, 0, static_cast<std::size_t>(count) * sizeof(float));
}

// Left operands: rows of words, one per step; or columns of a block (steps, kBlockM).
struct LeftRows {
  const Word* data;
  int64_t stride;
  TILEWISE_HD int64_t row_stride() const { return stride; }
  TILEWISE_HD static constexpr int64_t step_stride() { return 1; }
  TILEWISE_HD LeftRows from_step(int step) const { return {data + step, stride}; }
};
struct LeftColumns {
  const Word* data;
  TILEWISE_HD static constexpr int64_t row_stride() { return 1; }
  TILEWISE_HD static constexpr int64_t step_stride() { return kBlockM; }
};
// Panels of (steps, kPanel) words.
struct Right {
  const Word* data;
  int64_t panel_stride;
  TILEWISE_HD Right from_step(int step) const { return {data + step * kPanel, panel_stride}; }
};

// sink.finish gets rows [row, row + R) and lanes [lane, lane + V * kLanes).
template <int R, int V, class Left, class Sink>
TILEWISE_HD void tile(Left a, int steps, const Word* b, int row, int lane, const Sink& sink) {
  Vec acc[R][V];
  TILEWISE_UNROLL for (int i = 0; i < R; ++i) {
    TILEWISE_UNROLL for (int n = 0; n < V; ++n) acc[i][n] = Simd::zero();
  }
  sink.template prefetch<R, V>(row, lane);
  const Word* left = a.data + row * a.row_stride();
  do {  // with a test before the first round g++ 12 keeps the accumulators in memory
    TILEWISE_UNROLL for (int u = 0; u < kStepUnroll; ++u) {
      Words right[V];
      TILEWISE_UNROLL for (int n = 0; n < V; ++n) {
        right[n] = Simd::load_words(b + u * kPanel + n * kLanes);
      }
      TILEWISE_UNROLL for (int i = 0; i < R; ++i) {
        const Words word = Simd::broadcast_word(left + i * a.row_stride() + u * a.step_stride());
        TILEWISE_UNROLL for (int n = 0; n < V; ++n) acc[i][n] =
            Simd::mac(word, right[n], acc[i][n]);
      }
    }
    left += kStepUnroll * a.step_stride();
    b += kStepUnroll * kPanel;
    steps -= kStepUnroll;
  } while (steps > 0);
  sink.template finish<R, V>(acc, row, lane);
}

// One panel: `rows` is even.
template <int V, class Left, class Sink>
__attribute__((noinline)) void multiply_panel(Left a, int rows, int steps, const Word* b, int lane,
                                              const Sink& sink) {
  int row = 0;
  for (; row + kRows <= rows; row += kRows) tile<kRows, V>(a, steps, b, row, lane, sink);
  for (; row + 4 <= rows; row += 4) tile<4, V>(a, steps, b, row, lane, sink);
  for (; row < rows; row += 2) tile<2, V>(a, steps, b, row, lane, sink);
}

// All panels of a right operand that is `vecs` vectors wide.
template <class Left, class Sink>
TILEWISE_HD void multiply(Left a, int rows, int steps, Right b, int vecs, const Sink& sink) {
  int lane = 0;
  for (; vecs >= kVecs; vecs -= kVecs, lane += kPanel, b.data += b.panel_stride) {
    multiply_panel<kVecs>(a, rows, steps, b.data, lane, sink);
  }
  if (vecs == 1) multiply_panel<1>(a, rows, steps, b.data, lane, sink);
  if constexpr (kVecs > 2) {
    if (vecs == 2) multiply_panel<2>(a, rows, steps, b.data, lane, sink);
    if (vecs == 3) multiply_panel<3>(a, rows, steps, b.data, lane, sink);
  }
}

// c += tile.
struct Accumulate {
  float* c;
  int64_t row_stride;

  template <int R, int V>
  TILEWISE_HD void prefetch(int row, int lane) const {
    TILEWISE_UNROLL for (int i = 0; i < R; ++i) {
      TILEWISE_UNROLL for (int n = 0; n < V * kLanes; n += 16) {
        __builtin_prefetch(c + (row + i) * row_stride + lane + n, 1);
      }
    }
  }
  template <int R, int V>
  TILEWISE_HD void finish(Vec (&acc)[R][V], int row, int lane) const {
    TILEWISE_UNROLL for (int i = 0; i < R; ++i) {
      float* to = c + (row + i) * row_stride + lane;
      TILEWISE_UNROLL for (int n = 0; n < V; ++n) {
        Simd::store(to + n * kLanes, Simd::add(Simd::load(to + n * kLanes), acc[i][n]));
      }
    }
  }
};

// c = tile, into a block (keys, kBlockM).
struct StoreBlock {
  float* c;

  template <int R, int V>
  TILEWISE_HD void prefetch(int, int) const {}
  template <int R, int V>
  TILEWISE_HD void finish(Vec (&acc)[R][V], int row, int lane) const {
    TILEWISE_UNROLL for (int i = 0; i < R; ++i) {
      TILEWISE_UNROLL for (int n = 0; n < V; ++n) {
        Simd::store(c + (row + i) * kBlockM + lane + n * kLanes, acc[i][n]);
      }
    }
  }
};

// Adds what stands in a block to the tile, then does what Sink does.
template <class Sink>
struct AfterBlock {
  const float* block;
  Sink sink;

  template <int R, int V>
  TILEWISE_HD void prefetch(int, int) const {}
  template <int R, int V>
  TILEWISE_HD void finish(Vec (&acc)[R][V], int row, int lane) const {
    TILEWISE_UNROLL for (int i = 0; i < R; ++i) {
      TILEWISE_UNROLL for (int n = 0; n < V; ++n) {
        const float* from = block + (row + i) * kBlockM + lane + n * kLanes;
        acc[i][n] = Simd::add(acc[i][n], Simd::load(from));
      }
    }
    sink.template finish<R, V>(acc, row, lane);
  }
};

// multiply() with no sum of more than most_steps steps: fp32 loses more by the sums of Q K^T than
// by anything else. All parts but the last are added in `block`.
template <class Sink>
TILEWISE_HD void multiply_in_parts(LeftRows a, int rows, int steps, int most_steps, Right b,
                                   int vecs, float* block, const Sink& sink) {
  if constexpr (kPair == 1) {
    if (steps > most_steps) {
      const int64_t parts = round_up_div(steps, most_steps);
      const int part = static_cast<int>(round_up(round_up_div(steps, parts), kStepUnroll));
      multiply(a, rows, part, b, vecs, StoreBlock{block});
      int step = part;
      for (; steps - step > part; step += part) {
        multiply(a.from_step(step), rows, part, b.from_step(step), vecs,
                 AfterBlock<StoreBlock>{block, {block}});
      }
      return multiply(a.from_step(step), rows, steps - step, b.from_step(step), vecs,
                      AfterBlock<Sink>{block, sink});
    }
  }
  multiply(a, rows, steps, b, vecs, sink);
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE::backward
