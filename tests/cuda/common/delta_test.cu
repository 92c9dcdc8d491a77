// The pass over query rows before the backward, against loops over one row at a time.
#include "cuda/common/delta.cuh"

#include <cmath>
#include <limits>

#include "tests/cuda/common/backward_rows.h"
#include "tests/cuda/elements.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kBlockM = 64, kHeadDim = 64;  // of the sums of dq
constexpr float kPoison = -77.0f;

// One of the two tensors of a shape; NaN between the rows, where nobody may look.
template <DType kType>
std::vector<uint16_t> rows_of(const RowsShape& s, int dim, int gap, int seed) {
  std::vector<uint16_t> x(s.tokens() * s.heads * (dim + gap), 0xffff);
  for (size_t i = 0; i < x.size(); ++i) {
    if (static_cast<int>(i % (dim + gap)) >= dim) continue;
    x[i] = element<kType>(std::sin(static_cast<float>(seed * i % 1009)));
  }
  return x;
}

// Every fifth row sees no key.
std::vector<float> some_lse(int64_t rows) {
  std::vector<float> lse;
  for (int64_t i = 0; i < rows; ++i) {
    lse.push_back(i % 5 == 3 ? -kInfinity : 20.0f * std::cos(static_cast<float>(i)));
  }
  return lse;
}

class Delta : public DeviceTest {
 protected:
  template <DType kType>
  static void check(const RowsShape& s, int dim, int gap, bool deterministic) {
    SCOPED_TRACE(testing::Message() << "heads " << s.heads << " seqlen " << s.seqlen_q << " dim "
                                    << dim << "+" << gap);
    const auto o = rows_of<kType>(s, dim, gap, 3), d_o = rows_of<kType>(s, dim, gap, 7);
    const std::vector<float> lse = some_lse(s.tokens() * s.heads);
    const int64_t rows = s.workspace_rows(kBlockM);
    const DeviceArray<uint16_t> o_gmem(o), do_gmem(d_o);
    const DeviceArray<int32_t> cu(s.varlen() ? s.cu_q : std::vector<int32_t>{0}),
        turns(std::vector<int32_t>(rows / kBlockM, 99)), ticket(std::vector<int32_t>{99});
    const DeviceArray<float> lse_gmem(lse), row_lse(std::vector<float>(rows, kPoison)),
        delta_gmem(std::vector<float>(rows, kPoison)),
        sums(std::vector<float>(rows * kHeadDim, kPoison));
    BackwardParams p;
    s.set(p, kBlockM, cu.data());
    p.o = s.tensor(o_gmem.data(), dim, gap);
    p.do_ = s.tensor(do_gmem.data(), dim, gap);
    p.lse = lse_gmem.data();
    p.lse_head = s.varlen() ? s.tokens() : s.seqlen_q;
    p.lse_batch = p.lse_head * s.heads;  // not used by varlen
    p.row_lse = row_lse.data();
    p.delta = delta_gmem.data();
    p.dq_sum = sums.data();
    p.dq_turn = deterministic ? turns.data() : nullptr;
    p.ticket = deterministic ? ticket.data() : nullptr;
    delta<kType, kBlockM><<<dim3(p.m_blocks, s.heads, s.batch), kDeltaThreads>>>(p, kHeadDim);

    std::vector<float> want_lse(rows, kPoison), want_delta(rows, kPoison), bound(rows, 0.0f),
        want_sums(rows * kHeadDim, kPoison);
    std::vector<int32_t> want_turns(rows / kBlockM, 99);
    for (int i = 0; i < s.batch * s.heads; ++i) {
      const int b = i / s.heads, head = i % s.heads, n = s.queries(b);
      const int64_t first = s.workspace_row(b, head, kBlockM);
      for (int query = 0; query < (n + kBlockM - 1) / kBlockM * kBlockM; ++query) {
        const int64_t row = first + query;
        if (deterministic) want_turns[row / kBlockM] = 0;
        for (int x = 0; x < kHeadDim; ++x) want_sums[row * kHeadDim + x] = 0;
        want_lse[row] = kInfinity;
        want_delta[row] = 0;
        if (query >= n) continue;
        const float l =
            lse[(s.varlen() ? 0 : b * p.lse_batch) + head * p.lse_head + s.first_token(b) + query];
        if (l == -kInfinity) continue;
        want_lse[row] = l * kLog2e;
        double sum = 0, magnitude = 0;
        for (int x = 0; x < dim; ++x) {
          const int64_t at = s.row_of(b, query, head) * (dim + gap) + x;
          const double term = double{value<kType>(o[at])} * value<kType>(d_o[at]);
          sum += term;
          magnitude += std::abs(term);
        }
        want_delta[row] = static_cast<float>(sum);
        bound[row] = static_cast<float>(4e-6 * magnitude);
      }
    }
    EXPECT_TRUE(row_lse.get() == want_lse);
    EXPECT_TRUE(sums.get() == want_sums);
    EXPECT_TRUE(turns.get() == want_turns);
    EXPECT_EQ(ticket.get()[0], deterministic ? 0 : 99);
    const std::vector<float> got = delta_gmem.get();
    for (int64_t row = 0; row < rows; ++row) {
      ASSERT_NEAR(got[row], want_delta[row], bound[row]) << "row " << row;
    }
  }
};

TEST_F(Delta, RowsPaddingSumsAndTurns) {
  for (const RowsShape& s : some_shapes()) {
    for (const bool deterministic : {false, true}) {
      check<DType::kBf16>(s, 64, 0, deterministic);
      check<DType::kBf16>(s, 33, 2, deterministic);
      check<DType::kFp16>(s, 40, 8, deterministic);
      check<DType::kFp16>(s, 37, 3, deterministic);  // vectors, the last one not whole
      check<DType::kFp16>(s, 1, 0, deterministic);
    }
  }
  check<DType::kFp16>({1, 2, 70, {}}, 256, 0, true);
  check<DType::kBf16>({2, 1, 70, {}}, 193, 1, false);
}

}  // namespace
}  // namespace tilewise::cuda::test
