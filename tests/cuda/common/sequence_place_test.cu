// Where sequences of the backward stand in the tensors and in the workspace.
#include "cuda/common/sequence_place.cuh"

#include <algorithm>
#include <utility>

#include "tests/cuda/common/backward_rows.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

// What SequencePlace says of a head of a sequence.
struct Head {
  int n_q, n_k;
  int64_t first, third;               // rows 0 and 3 in the workspace
  int64_t q_first, q_third, k_third;  // elements from the start of q and of k
};

__global__ void list_heads(BackwardParams p, int block_m, Head* heads) {
  const int head = static_cast<int>(blockIdx.x), batch = static_cast<int>(blockIdx.y);
  const SequencePlace at = SequencePlace::of(p, batch, block_m);
  if (threadIdx.x != 0) return;
  Head& out = heads[batch * gridDim.x + head];
  out.n_q = at.lengths().q;
  out.n_k = at.lengths().k;
  out.first = at.padded_row(head, 0);
  out.third = at.padded_row(head, 3);
  out.q_first = at.query_row(p.q, 0, head) - p.q.data;
  out.q_third = at.query_row(p.q, 3, head) - p.q.data;
  out.k_third = at.key_row(p.k, 3, head / p.group) - p.k.data;
}

class SequencePlaces : public DeviceTest {
 protected:
  static std::vector<Head> heads_of(const RowsShape& s, const std::vector<int32_t>& cu_k,
                                    int seqlen_k, int block_m) {
    const DeviceArray<int32_t> cu_q(s.varlen() ? s.cu_q : std::vector<int32_t>{0}),
        keys(s.varlen() ? cu_k : std::vector<int32_t>{0});
    BackwardParams p = params_of(s);
    s.set(p, block_m, cu_q.data());
    if (s.varlen()) p.cu_seqlens_k = keys.data();
    p.seqlen_k = seqlen_k;
    const DeviceArray<Head> heads(static_cast<size_t>(s.batch) * s.heads);
    list_heads<<<dim3(s.heads, s.batch), 32>>>(p, block_m, heads.data());
    return heads.get();
  }
  // Strides that all differ; addresses that nobody reads.
  static BackwardParams params_of(const RowsShape& s) {
    BackwardParams p;
    p.q = {reinterpret_cast<uint16_t*>(0x1000000), s.varlen() ? 0 : 1000003, 1009, 101, 8, false};
    p.k = {reinterpret_cast<uint16_t*>(0x2000000), s.varlen() ? 0 : 1000033, 1013, 103, 8, false};
    p.group = s.heads % 2 == 0 ? 2 : 1;
    return p;
  }
};

TEST_F(SequencePlaces, RowsOfTheWorkspaceAreWholeBlocksOfOneHeadEach) {
  for (const int block_m : {16, 64}) {
    for (const RowsShape& s : some_shapes()) {
      const std::vector<Head> got = heads_of(s, s.cu_q, s.seqlen_q, block_m);
      std::vector<std::pair<int64_t, int64_t>> taken;
      for (int i = 0; i < s.batch * s.heads; ++i) {
        const int b = i / s.heads, head = i % s.heads;
        EXPECT_EQ(got[i].n_q, s.queries(b));
        EXPECT_EQ(got[i].first, s.workspace_row(b, head, block_m));
        EXPECT_EQ(got[i].first % block_m, 0);
        EXPECT_EQ(got[i].third, got[i].first + 3);
        const int64_t blocks = (s.queries(b) + block_m - 1) / block_m;
        taken.emplace_back(got[i].first, got[i].first + blocks * block_m);
      }
      std::sort(taken.begin(), taken.end());
      int64_t end = 0;
      for (const auto& [row, row_end] : taken) {
        EXPECT_LE(end, row) << "sequences overlap";
        end = row_end;
      }
      EXPECT_LE(end, s.workspace_rows(block_m));
    }
  }
}

TEST_F(SequencePlaces, AddressesOfQueriesAndKeys) {
  const std::vector<int32_t> more_keys = {0, 90, 95, 95, 140, 141, 300};
  for (const RowsShape& s : some_shapes()) {
    const std::vector<int32_t> cu_k(more_keys.begin(), more_keys.begin() + s.batch + 1);
    const std::vector<Head> got = heads_of(s, cu_k, 77, 64);
    const BackwardParams p = params_of(s);
    for (int i = 0; i < s.batch * s.heads; ++i) {
      const int b = i / s.heads, head = i % s.heads;
      EXPECT_EQ(got[i].n_k, s.varlen() ? cu_k[b + 1] - cu_k[b] : 77);
      const auto address = [&](const TensorRef& x, int64_t token, int of_head) {
        return b * x.batch + token * x.seqlen + of_head * x.head;
      };
      const int q_start = s.first_token(b), k_start = s.varlen() ? cu_k[b] : 0;
      EXPECT_EQ(got[i].q_first, address(p.q, q_start, head));
      EXPECT_EQ(got[i].q_third, address(p.q, q_start + 3, head));
      EXPECT_EQ(got[i].k_third, address(p.k, k_start + 3, head / p.group));
    }
  }
}

// The rule of the workspace's rows by brute force: every three lengths up to two blocks.
TEST(WorkspaceRows, NeverOverlapForAnyLengths) {
  constexpr int kBlock = 4;
  for (int code = 0; code < 9 * 9 * 9; ++code) {
    const int lengths[] = {code % 9, code / 9 % 9, code / 81};
    RowsShape s = {3, 2, 8, {0}};
    for (const int n : lengths) s.cu_q.push_back(s.cu_q.back() + n);
    std::vector<int> owner(s.workspace_rows(kBlock), -1);
    for (int i = 0; i < 3 * s.heads; ++i) {
      const int b = i / s.heads;
      const int64_t first = s.workspace_row(b, i % s.heads, kBlock);
      ASSERT_EQ(first % kBlock, 0);
      for (int64_t row = 0; row < (lengths[b] + kBlock - 1) / kBlock * kBlock; ++row) {
        ASSERT_LT(first + row, static_cast<int64_t>(owner.size())) << code;
        ASSERT_EQ(owner[first + row], -1) << code;
        owner[first + row] = i;
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda::test
