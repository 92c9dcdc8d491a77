// From products to P^T and dS^T, against loops over one key and query at a time.
#include "cuda/common/gradients.cuh"

#include <cmath>
#include <limits>

#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kWarps = 2;

enum Verb { kKeepBanded, kKeepAll, kWeights, kScoreGradients, kGeneralWeights };

// The tile, and what the problem is beyond BackwardParams.
struct Task {
  BackwardParams p;
  int head, first_key, first_query;
  const float* columns;  // lse or delta
  const float* weights;  // kScoreGradients: P
  float* tile;           // keys by queries
  float* slopes;         // kGeneralWeights: an output like the tile
};

template <int kRowAtoms, int kColAtoms>
__device__ void load(Accumulator<kRowAtoms, kColAtoms>& x, const float* tile) {
  for (int r = 0; r < x.kRows; ++r) {
    for (int j = 0; j < x.kCols; ++j) x.at(r, j) = tile[x.row(r) * 8 * kColAtoms + x.col(j)];
  }
}
template <int kRowAtoms, int kColAtoms>
__device__ void store(const Accumulator<kRowAtoms, kColAtoms>& x, float* tile) {
  for (int r = 0; r < x.kRows; ++r) {
    for (int j = 0; j < x.kCols; ++j) tile[x.row(r) * 8 * kColAtoms + x.col(j)] = x.at(r, j);
  }
}

template <Verb kVerb, int kRowAtoms, int kColAtoms>
__global__ void apply(Task task) {
  using Scores = Accumulator<kRowAtoms, kColAtoms>;
  const BackwardParams& p = task.p;
  SequencePlace at;
  at.batch = 1;
  at.n_q = p.seqlen_q;
  at.n_k = p.seqlen_k;
  const int warp_key = warp_id() * 16 * kRowAtoms, key = task.first_key + warp_key;
  float* const tile = task.tile + warp_key * 8 * kColAtoms;
  Scores s;
  load(s, tile);
  if constexpr (kVerb == kKeepBanded || kVerb == kKeepAll) {
    Visible<Scores>::template of<kVerb == kKeepBanded>(p, at, key, task.first_query).keep(s);
  }
  if constexpr (kVerb == kWeights) weights(s, p.scale * kLog2e, task.columns);
  if constexpr (kVerb == kScoreGradients) {
    Scores of;
    load(of, task.weights + warp_key * 8 * kColAtoms);
    score_gradients(s, of, task.columns);
  }
  if constexpr (kVerb == kGeneralWeights) {
    Scores slopes;
    general_weights(s, slopes, p, at, task.head, key, task.first_query, task.columns);
    store(slopes, task.slopes + warp_key * 8 * kColAtoms);
  }
  store(s, tile);
}

std::vector<float> some_scores(int count) {
  std::vector<float> tile;
  for (int i = 0; i < count; ++i) tile.push_back(40.0f * std::sin(0.7f * static_cast<float>(i)));
  return tile;
}

bool same_bits(float a, float b) { return bits_of_float(a) == bits_of_float(b); }

class GradientsOnDevice : public DeviceTest {
 protected:
  template <Verb kVerb, int kRowAtoms, int kColAtoms>
  static std::vector<float> run(Task task, const std::vector<float>& tile,
                                const std::vector<float>& columns) {
    const DeviceArray<float> in_out(tile), of_columns(columns);
    task.tile = in_out.data();
    task.columns = of_columns.data();
    apply<kVerb, kRowAtoms, kColAtoms><<<1, 32 * kWarps>>>(task);
    return in_out.get();
  }

  template <int kRowAtoms, int kColAtoms>
  static void check_visible();
  template <int kRowAtoms, int kColAtoms>
  static void check_weights();
  template <int kRowAtoms, int kColAtoms>
  static void check_score_gradients();
  template <int kRowAtoms, int kColAtoms>
  static void check_general_weights(bool alibi, float softcap, float scale, Corner align);
};

template <int kRowAtoms, int kColAtoms>
void GradientsOnDevice::check_visible() {
  constexpr int kKeys = 16 * kRowAtoms * kWarps, kQueries = 8 * kColAtoms;
  std::vector<float> tile = some_scores(kKeys * kQueries);
  for (size_t i = 0; i < tile.size(); i += 3) tile[i] = i % 2 == 0 ? NAN : kInfinity;
  const std::vector<float> unused(kQueries, 0.0f);
  Task task = {};
  task.p.seqlen_q = 70;
  task.p.seqlen_k = 90;
  for (const MaskSpec& mask :
       {MaskSpec{kUnbounded, 0}, MaskSpec{5, 3}, MaskSpec{kUnbounded, kUnbounded},
        MaskSpec{0, 0, Corner::kTopLeft}, MaskSpec{40, kUnbounded, Corner::kTopLeft},
        MaskSpec{kUnbounded, 0, Corner::kTopLeft}, MaskSpec{3, kUnbounded}}) {
    task.p.mask = mask;
    for (const int key : {0, 32, 64, 96}) {
      for (const int query : {0, 16, 32, 64}) {
        task.first_key = key;
        task.first_query = query;
        const auto banded = run<kKeepBanded, kRowAtoms, kColAtoms>(task, tile, unused);
        const auto all = run<kKeepAll, kRowAtoms, kColAtoms>(task, tile, unused);
        for (int i = 0; i < kKeys * kQueries; ++i) {
          const int k = key + i / kQueries, q = query + i % kQueries;
          const bool there = k < 90 && q < 70, seen = there && mask.visible(q, k, Lengths{70, 90});
          ASSERT_TRUE(same_bits(banded[i], seen ? tile[i] : 0.0f)) << "key " << k << " query " << q;
          ASSERT_TRUE(same_bits(all[i], there ? tile[i] : 0.0f)) << "key " << k << " query " << q;
        }
      }
    }
  }
}

TEST_F(GradientsOnDevice, HiddenPairsBecomeZeroWhateverTheyHold) {
  check_visible<2, 4>();
  check_visible<1, 8>();
  check_visible<1, 16>();
}

template <int kRowAtoms, int kColAtoms>
void GradientsOnDevice::check_weights() {
  constexpr int kKeys = 16 * kRowAtoms * kWarps, kQueries = 8 * kColAtoms;
  const std::vector<float> tile = some_scores(kKeys * kQueries);
  std::vector<float> lse;
  for (int q = 0; q < kQueries; ++q) lse.push_back(30.0f * std::cos(static_cast<float>(q)));
  lse[5] = kInfinity;  // a row without keys, or none
  Task task = {};
  task.p.scale = 0.3f;
  const auto got = run<kWeights, kRowAtoms, kColAtoms>(task, tile, lse);
  for (int i = 0; i < kKeys * kQueries; ++i) {
    const double l = lse[i % kQueries], exponent = double{tile[i]} * 0.3 * std::log2(std::exp(1.0));
    const double want = std::exp2(exponent - l);
    if (i % kQueries == 5) {
      ASSERT_EQ(got[i], 0.0f) << i;
    } else {
      ASSERT_NEAR(got[i], want, want * (4e-7 * (std::abs(exponent) + std::abs(l)) + 1e-6)) << i;
    }
  }
}

TEST_F(GradientsOnDevice, WeightsComeFromTheLse) {
  check_weights<2, 4>();
  check_weights<1, 8>();
}

template <int kRowAtoms, int kColAtoms>
void GradientsOnDevice::check_score_gradients() {
  constexpr int kKeys = 16 * kRowAtoms * kWarps, kQueries = 8 * kColAtoms;
  const std::vector<float> tile = some_scores(kKeys * kQueries);
  std::vector<float> p, delta;
  for (int i = 0; i < kKeys * kQueries; ++i) p.push_back(1.0f / static_cast<float>(1 + i % 97));
  for (int q = 0; q < kQueries; ++q) delta.push_back(20.0f * std::cos(static_cast<float>(q)));
  const DeviceArray<float> p_gmem(p);
  Task task = {};
  task.weights = p_gmem.data();
  const auto got = run<kScoreGradients, kRowAtoms, kColAtoms>(task, tile, delta);
  for (int i = 0; i < kKeys * kQueries; ++i) {
    const double want = double{p[i]} * (double{tile[i]} - delta[i % kQueries]);
    ASSERT_NEAR(got[i], want, 2e-7 * std::abs(want)) << i;
  }
}

TEST_F(GradientsOnDevice, ScoreGradients) {
  check_score_gradients<2, 4>();
  check_score_gradients<1, 8>();
}

template <int kRowAtoms, int kColAtoms>
void GradientsOnDevice::check_general_weights(bool alibi, float softcap, float scale,
                                              Corner align) {
  constexpr int kKeys = 16 * kRowAtoms * kWarps, kQueries = 8 * kColAtoms, kHeads = 3;
  const std::vector<float> tile = some_scores(kKeys * kQueries);
  const double log2e = std::log2(std::exp(1.0));
  // Of batches 0 and 1; the place is in batch 1.
  const DeviceArray<float> alibi_slopes(std::vector<float>{9, 9, 9, 9, 9, 0.0625f}),
      slopes(kKeys * kQueries);
  Task task = {};
  task.p.seqlen_q = 100;
  task.p.seqlen_k = 130;
  task.p.scale = scale;
  task.p.softcap = softcap;
  task.p.mask = MaskSpec{kUnbounded, kUnbounded, align};
  task.p.alibi_slopes = alibi ? alibi_slopes.data() : nullptr;
  task.p.alibi_batch = kHeads;
  task.head = 2;
  task.first_key = 64;
  task.first_query = 32;
  task.slopes = slopes.data();
  std::vector<float> lse;
  for (int q = 0; q < kQueries; ++q) lse.push_back(10.0f * std::cos(static_cast<float>(q)));
  const auto got = run<kGeneralWeights, kRowAtoms, kColAtoms>(task, tile, lse);
  const std::vector<float> got_slopes = slopes.get();
  for (int i = 0; i < kKeys * kQueries; ++i) {
    const int key = 64 + i / kQueries, query = 32 + i % kQueries;
    double x = double{tile[i]} * scale, slope = 1;
    if (softcap > 0) {
      const double t = std::tanh(x / softcap);
      slope = 1 - t * t;
      x = softcap * t;
    }
    const int diagonal = align == Corner::kBottomRight ? 30 : 0;
    const double bias = alibi ? 0.0625 * std::abs(query + diagonal - key) : 0;
    const double l = lse[i % kQueries], want = std::exp2((x - bias) * log2e - l);
    const double magnitude = (std::abs(x) + bias) * log2e + std::abs(l);
    ASSERT_NEAR(got[i], want, want * (4e-7 * magnitude + 1e-6 * (1 + softcap))) << i;
    ASSERT_NEAR(got_slopes[i], slope, 1e-6) << i;
  }
}

TEST_F(GradientsOnDevice, GeneralWeightsAreScaleThenSoftcapThenAlibi) {
  for (const Corner align : {Corner::kBottomRight, Corner::kTopLeft}) {
    for (const bool alibi : {false, true}) {
      for (const float softcap : {0.0f, 15.0f}) {
        for (const float scale : {0.3f, -0.5f}) {
          check_general_weights<2, 2>(alibi, softcap, scale, align);
          check_general_weights<1, 4>(alibi, softcap, scale, align);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda::test
