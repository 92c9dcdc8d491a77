// What happens to scores between the two products, against loops over one row at a time.
#include "cuda/common/scores.cuh"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kRowAtoms = 2, kKeyAtoms = 8, kWarps = 4;
constexpr int kTileRows = 16 * kRowAtoms * kWarps, kKeys = 8 * kKeyAtoms;
using Scores = Accumulator<kRowAtoms, kKeyAtoms>;

enum Verb { kTransform, kHideBanded, kHideTail };

__device__ Place place_of(const ForwardParams& p, int first_row) {
  Place at = {};
  at.n_q = p.seqlen_q;
  at.n_k = p.seqlen_k;
  at.first_head = 1;
  at.first_row = first_row;
  at.rows = min(at.n_q * p.pack - first_row, kTileRows);
  return at;
}

// Does one thing to the tile of scores of rows from first_row and keys from `key` on.
template <Verb kVerb>
__global__ void apply(ForwardParams p, int first_row, int key, float* tile, float* scale) {
  const Place at = place_of(p, first_row);
  const int warp_row = warp_id() * 16 * kRowAtoms;
  Scores s;
  for (int r = 0; r < s.kRows; ++r) {
    for (int j = 0; j < s.kCols; ++j) s.at(r, j) = tile[(warp_row + s.row(r)) * kKeys + s.col(j)];
  }
  if constexpr (kVerb == kTransform) *scale = transform_scores(s, p, at, warp_row, key).scale;
  if constexpr (kVerb == kHideBanded) hide_keys<true>(s, p, at, warp_row, key);
  if constexpr (kVerb == kHideTail) hide_keys<false>(s, p, at, warp_row, key);
  for (int r = 0; r < s.kRows; ++r) {
    for (int j = 0; j < s.kCols; ++j) tile[(warp_row + s.row(r)) * kKeys + s.col(j)] = s.at(r, j);
  }
}

std::vector<float> some_scores() {
  std::vector<float> tile;
  for (int i = 0; i < kTileRows * kKeys; ++i) {
    tile.push_back(40.0f * std::sin(0.7f * static_cast<float>(i)));
  }
  return tile;
}

class ScoresOnDevice : public DeviceTest {
 protected:
  template <Verb kVerb>
  static std::vector<float> run(const ForwardParams& p, int first_row, int key, float* scale) {
    const DeviceArray<float> tile(some_scores()), one(1);
    apply<kVerb><<<1, 32 * kWarps>>>(p, first_row, key, tile.data(), one.data());
    *scale = one.get()[0];
    return tile.get();
  }
};

TEST_F(ScoresOnDevice, TransformIsScaleThenSoftcapThenAlibi) {
  const DeviceArray<float> slopes(std::vector<float>{0, 0.25f, 0.0625f, 0});
  for (const float softcap : {0.0f, 15.0f}) {
    for (const bool alibi : {false, true}) {
      for (const int pack : {1, 2}) {
        for (const float scale : {0.3f, -0.5f}) {
          ForwardParams p;
          p.seqlen_q = 90;
          p.seqlen_k = 300;
          p.scale = scale;
          p.softcap = softcap;
          p.alibi_slopes = alibi ? slopes.data() : nullptr;
          p.pack = pack;
          p.plain = softcap == 0 && !alibi && scale > 0;
          const int first_row = 32, key = 64, rows = std::min(90 * pack - first_row, kTileRows);
          float factor = 0;
          const std::vector<float> got = run<kTransform>(p, first_row, key, &factor);
          const std::vector<float> raw = some_scores();
          for (int i = 0; i < rows * kKeys; ++i) {
            const int row = first_row + i / kKeys, j = key + i % kKeys;
            double want = double{raw[i]} * scale;
            if (softcap > 0) want = softcap * std::tanh(want / softcap);
            const double slope = (row % pack + 1) == 1 ? 0.25 : 0.0625;  // first_head is 1
            if (alibi) want -= slope * std::abs(row / pack + 300 - 90 - j);
            want *= std::log2(std::exp(1.0));
            EXPECT_NEAR(double{got[i]} * factor, want, 1e-5 * std::max(1.0, std::abs(want))) << i;
          }
        }
      }
    }
  }
}

TEST_F(ScoresOnDevice, HiddenKeysBecomeMinusInfinity) {
  for (const MaskSpec& mask :
       {MaskSpec{kUnbounded, 0}, MaskSpec{5, 3}, MaskSpec{kUnbounded, kUnbounded},
        MaskSpec{0, 0, Corner::kTopLeft}, MaskSpec{40, kUnbounded, Corner::kTopLeft}}) {
    for (const int pack : {1, 3}) {
      for (const int key : {0, 64, 128}) {
        ForwardParams p;
        p.seqlen_q = 70;
        p.seqlen_k = 150;
        p.mask = mask;
        p.pack = pack;
        const int first_row = 16;
        float unused = 0;
        const std::vector<float> raw = some_scores();
        const std::vector<float> banded = run<kHideBanded>(p, first_row, key, &unused);
        const std::vector<float> tail = run<kHideTail>(p, first_row, key, &unused);
        for (int i = 0; i < std::min(70 * pack - first_row, kTileRows) * kKeys; ++i) {
          const int query = (first_row + i / kKeys) / pack, j = key + i % kKeys;
          const bool seen = mask.visible(query, j, Lengths{70, 150});
          EXPECT_EQ(banded[i], seen ? raw[i] : -kInfinity) << query << " " << j;
          EXPECT_EQ(tail[i], j < 150 ? raw[i] : -kInfinity) << query << " " << j;
        }
      }
    }
  }
}

// Two tiles of keys through the softmax: out has the weights of the second, and each lane's part of
// the highest exponents of both and of the sums, and what rows of ones become by the second.
__global__ void two_steps(const float* tiles, float scale, float* weights, float* most, float* sums,
                          float* output) {
  const int warp_row = warp_id() * 16 * kRowAtoms, lane = static_cast<int>(threadIdx.x);
  RowSoftmax<Scores::kRows> softmax;
  Accumulator<kRowAtoms, 1> o;
  o.clear();
  for (int tile = 0; tile < 2; ++tile) {
    Scores s;
    for (int r = 0; r < s.kRows; ++r) {
      for (int j = 0; j < s.kCols; ++j) {
        s.at(r, j) = tiles[(tile * kTileRows + warp_row + s.row(r)) * kKeys + s.col(j)];
      }
    }
    const auto highest = row_max(s, Exponents{scale});
    rescale(o, softmax.update(RowOps<Scores::kRows>::quad_max(highest)));
    const Weights<DType::kBf16, Scores> operand = {s, Exponents{scale}, softmax};
    for (int step = 0; step < kKeys / 16; ++step) {
      uint32_t a[kRowAtoms][4];
      operand(a, step);
    }
    for (int r = 0; r < o.kRows && tile == 0; ++r) o.at(r, 0) = o.at(r, 1) = 1.0f;
    for (int r = 0; r < s.kRows; ++r) {
      most[(tile * blockDim.x + lane) * s.kRows + r] = highest.x[r];
      for (int j = 0; j < s.kCols; ++j) {
        weights[(warp_row + s.row(r)) * kKeys + s.col(j)] = s.at(r, j);
      }
    }
  }
  for (int r = 0; r < o.kRows; ++r) {
    sums[lane * o.kRows + r] = softmax.sum.x[r];
    output[(warp_row + o.row(r)) * 8 + o.col(0)] = o.at(r, 0);
    output[(warp_row + o.row(r)) * 8 + o.col(1)] = o.at(r, 1);
  }
}

TEST_F(ScoresOnDevice, MaximaWeightsSumsAndRescaling) {
  std::vector<float> tiles = some_scores();
  // The references of most rows rise, those of the last warp stay.
  for (const float x : some_scores()) {
    tiles.push_back(tiles.size() < (kTileRows + 96) * kKeys ? x + 5 : x - 5);
  }
  const auto at = [&](int tile, int row, int key) -> float& {
    return tiles[(tile * kTileRows + row) * kKeys + key];
  };
  for (int key = 0; key < kKeys; ++key) at(0, 3, key) = -kInfinity;  // sees nothing yet
  for (int key = 0; key < kKeys; ++key) at(0, 9, key) = at(1, 9, key) = -kInfinity;  // never
  at(0, 20, 11) = NAN;  // passed over by the maximum, and in the sum
  constexpr int kLanes = 32 * kWarps, kRows = Scores::kRows;
  constexpr float kScale = 0.1f;
  const DeviceArray<float> in(tiles), weights(kTileRows * kKeys), most(2 * kLanes * kRows),
      sums(kLanes * kRows), output(kTileRows * 8);
  two_steps<<<1, kLanes>>>(in.data(), kScale, weights.data(), most.data(), sums.data(),
                           output.data());
  const std::vector<float> got_weights = weights.get(), got_most = most.get(),
                           got_sums = sums.get(), got_output = output.get();
  for (int row = 0; row < kTileRows; ++row) {
    float highest[2] = {-kInfinity, -kInfinity};  // of each tile
    for (int tile = 0; tile < 2; ++tile) {
      for (int key = 0; key < kKeys; ++key) {
        highest[tile] = std::fmax(highest[tile], at(tile, row, key) * kScale);
      }
    }
    const float reference = std::max(highest[0], highest[1]);
    const double shift = reference == -kInfinity ? 0 : reference;
    double sum = 0;
    for (int tile = 0; tile < 2; ++tile) {
      for (int key = 0; key < kKeys; ++key) {
        const double weight = std::exp2(double{at(tile, row, key)} * kScale - shift);
        sum += weight;
        if (tile == 1) EXPECT_NEAR(got_weights[row * kKeys + key], weight, 1e-6) << row;
      }
    }
    // Row r of the quad: lanes that share it, and the lane's number of it.
    const int warp = row / 32, in_warp = row % 32;
    const int lane = 32 * warp + in_warp % 8 * 4, r = in_warp / 16 * 2 + in_warp / 8 % 2;
    double got_sum = 0;
    float got_highest[2] = {-kInfinity, -kInfinity};
    for (int quad = 0; quad < 4; ++quad) {
      got_sum += got_sums[(lane + quad) * kRows + r];
      for (int tile = 0; tile < 2; ++tile) {
        got_highest[tile] =
            std::max(got_highest[tile], got_most[(tile * kLanes + lane + quad) * kRows + r]);
      }
    }
    EXPECT_EQ(got_highest[0], highest[0]) << row;
    EXPECT_EQ(got_highest[1], highest[1]) << row;
    if (row == 20) {
      EXPECT_TRUE(std::isnan(got_sum));
    } else {
      EXPECT_NEAR(got_sum, sum, 1e-5 * std::max(1.0, sum)) << row;
    }
    const double factor = highest[0] == -kInfinity ? 0 : std::exp2(highest[0] - shift);
    for (int x = 0; x < 8; ++x) EXPECT_NEAR(got_output[row * 8 + x], factor, 1e-6) << row;
    if (row >= 96) EXPECT_EQ(got_output[row * 8], 1.0f) << row;
  }
}

__global__ void tanh_each(const float* x, float* y, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += blockDim.x) y[i] = tanh_of(x[i]);
}

TEST_F(ScoresOnDevice, TanhWithinItsBound) {
  std::vector<float> x = {0, -kInfinity, kInfinity, 1e30f, -1e30f, 1e-20f};
  for (int i = -20000; i <= 20000; ++i) x.push_back(1e-3f * static_cast<float>(i));
  const DeviceArray<float> in(x), out(x.size());
  tanh_each<<<1, 256>>>(in.data(), out.data(), static_cast<int>(x.size()));
  const std::vector<float> y = out.get();
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], std::tanh(double{x[i]}), 2.4e-7) << x[i];
}

}  // namespace
}  // namespace tilewise::cuda::test
