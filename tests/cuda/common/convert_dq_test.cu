// dQ from its sums, against loops over one row at a time.
#include "cuda/common/convert_dq.cuh"

#include <cmath>

#include "core/numeric.h"
#include "tests/cuda/common/backward_rows.h"
#include "tests/cuda/elements.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr int kBlockM = 64;
constexpr float kScale = -0.37f;

__host__ __device__ float sum_at(int64_t row, int column) {
  return static_cast<float>((row * 389 + column * 17) % 5003 - 2500) / 64.0f;
}

// Sums of every row of the workspace; one thread block a block of rows, one warp 16 rows.
template <int kHeadDim>
__global__ void fill_sums(float* sums) {
  const int64_t first = int64_t{blockIdx.x} * kBlockM;
  for (int n = 0; n < kHeadDim / 8; ++n) {
    using Atom = Accumulator<1, 1>;
    Atom atom;
    for (int r = 0; r < Atom::kRows; ++r) {
      for (int j = 0; j < Atom::kCols; ++j) {
        atom.at(r, j) = sum_at(first + 16 * warp_id() + Atom::row(r), 8 * n + Atom::col(j));
      }
    }
    add_atom(sums + first * kHeadDim + atom_offset<kHeadDim>(warp_id(), n), atom.c[0][0]);
  }
}

class ConvertDq : public DeviceTest {
 protected:
  template <DType kType, int kHeadDim>
  static void check(const RowsShape& s, int dim, int gap) {
    SCOPED_TRACE(testing::Message() << "heads " << s.heads << " seqlen " << s.seqlen_q << " dim "
                                    << dim << "+" << gap);
    const int64_t rows = s.workspace_rows(kBlockM);
    const DeviceArray<float> sums(std::vector<float>(rows * kHeadDim, 0.0f));
    fill_sums<kHeadDim><<<static_cast<unsigned>(rows / kBlockM), 2 * kBlockM>>>(sums.data());
    // Poison, and a block more of it behind the last row.
    std::vector<uint16_t> want((s.tokens() + kBlockM) * s.heads * (dim + gap), 0xffff);
    const DeviceArray<uint16_t> dq(want);
    const DeviceArray<int32_t> cu(s.varlen() ? s.cu_q : std::vector<int32_t>{0});
    BackwardParams p;
    s.set(p, kBlockM, cu.data());
    p.dq = s.tensor(dq.data(), dim, gap);
    p.dq_sum = sums.data();
    p.scale = kScale;
    convert_dq<kType, kHeadDim, kBlockM><<<dim3(p.m_blocks, s.heads, s.batch), 2 * kBlockM>>>(p);
    for (int i = 0; i < s.batch * s.heads; ++i) {
      const int b = i / s.heads, head = i % s.heads;
      const int64_t first = s.workspace_row(b, head, kBlockM);
      for (int query = 0; query < s.queries(b); ++query) {
        uint16_t* const row = want.data() + s.row_of(b, query, head) * (dim + gap);
        for (int x = 0; x < dim; ++x) row[x] = element<kType>(kScale * sum_at(first + query, x));
      }
    }
    EXPECT_TRUE(dq.get() == want);
  }
};

TEST_F(ConvertDq, ScalesAndRoundsItsRowsAndNothingElse) {
  for (const RowsShape& s : some_shapes()) {
    check<DType::kBf16, 64>(s, 64, 0);
    check<DType::kBf16, 64>(s, 33, 2);
    check<DType::kFp16, 64>(s, 40, 8);
    check<DType::kFp16, 64>(s, 1, 0);
    check<DType::kFp16, 96>(s, 93, 3);  // vectors, the last one not whole
  }
  const RowsShape two_blocks = {2, 2, 100, {}};
  check<DType::kBf16, 96>(two_blocks, 96, 8);
  check<DType::kFp16, 128>(two_blocks, 120, 0);
  check<DType::kBf16, 192>(two_blocks, 187, 1);
  check<DType::kBf16, 256>(two_blocks, 256, 0);
  check<DType::kFp16, 256>(two_blocks, 201, 0);
}

}  // namespace
}  // namespace tilewise::cuda::test
