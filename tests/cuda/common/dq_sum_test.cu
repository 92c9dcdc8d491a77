// Sums of dQ: what warps of many blocks add, atom by atom, is found again where it belongs.
#include "cuda/common/dq_sum.cuh"

#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr int kRows = 64, kBlocks = 50, kGuard = 64;

// Whole numbers, whose sums are the same in any order.
__host__ __device__ float value_at(int row, int column, int block) {
  return static_cast<float>(row * 512 + column + block % 5);
}

// One warp 16 rows, as many columns at a time as an atom has.
template <int kHeadDim>
__global__ void add(float* sums) {
  using Atom = Accumulator<1, 1>;
  for (int n = 0; n < kHeadDim / 8; ++n) {
    Atom atom;
    for (int r = 0; r < Atom::kRows; ++r) {
      for (int j = 0; j < Atom::kCols; ++j) {
        atom.at(r, j) = value_at(16 * warp_id() + Atom::row(r), 8 * n + Atom::col(j), blockIdx.x);
      }
    }
    add_atom(sums + atom_offset<kHeadDim>(warp_id(), n), atom.c[0][0]);
  }
}

// The sums as a row-major matrix.
template <int kHeadDim>
__global__ void load(const float* sums, float* matrix) {
  using Atom = Accumulator<1, 1>;
  for (int n = 0; n < kHeadDim / 8; ++n) {
    Atom atom;
    load_atom(atom.c[0][0], sums + atom_offset<kHeadDim>(warp_id(), n));
    for (int r = 0; r < Atom::kRows; ++r) {
      for (int j = 0; j < Atom::kCols; ++j) {
        matrix[(16 * warp_id() + Atom::row(r)) * kHeadDim + 8 * n + Atom::col(j)] = atom.at(r, j);
      }
    }
  }
}

class DqSum : public DeviceTest {
 protected:
  template <int kHeadDim>
  static void check() {
    std::vector<float> start(kRows * kHeadDim + kGuard, 0.0f);
    for (int i = 0; i < kGuard; ++i) start[kRows * kHeadDim + i] = -7.0f;
    const DeviceArray<float> sums(start), matrix(kRows * kHeadDim);
    add<kHeadDim><<<kBlocks, 2 * kRows>>>(sums.data());
    load<kHeadDim><<<1, 2 * kRows>>>(sums.data(), matrix.data());
    const std::vector<float> got = matrix.get(), raw = sums.get();
    for (int i = 0; i < kRows * kHeadDim; ++i) {
      float want = 0;
      for (int block = 0; block < kBlocks; ++block) {
        want += value_at(i / kHeadDim, i % kHeadDim, block);
      }
      ASSERT_EQ(got[i], want) << kHeadDim << ": row " << i / kHeadDim << " column " << i % kHeadDim;
    }
    for (int i = 0; i < kGuard; ++i) EXPECT_EQ(raw[kRows * kHeadDim + i], -7.0f) << i;
  }
};

TEST_F(DqSum, AtomsAreFoundWhereTheyWereAdded) {
  check<64>();
  check<96>();
  check<128>();
  check<192>();
  check<256>();
}

}  // namespace
}  // namespace tilewise::cuda::test
