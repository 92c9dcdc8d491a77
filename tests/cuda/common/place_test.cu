// Where thread blocks work: together they hold every row of every head once, at its own address.
#include "cuda/common/place.cuh"

#include <algorithm>
#include <map>
#include <tuple>

#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr int kBlockM = 32, kBlockN = 16;

// One row of one block, as its Place has it.
struct Row {
  int batch, split, query, head, kv_head;
  int64_t q, o, k, v, partial;  // elements from the start; k and v of the sequence's key 0
  Steps steps;                  // of the block
};

__global__ void list_rows(ForwardParams p, bool longest_first, Row* rows, int* count) {
  const Place at = Place::of_block(p, kBlockM, longest_first);
  if (at.rows <= 0) return;
  const int row = static_cast<int>(threadIdx.x);
  if (row >= at.rows) return;
  Row& out = rows[atomicAdd(count, 1)];
  out = {at.batch, at.split, at.query(p, row), at.head(p, row), at.kv_head};
  out.q = at.q_row(p, row) - p.q.data;
  out.o = at.o_row(p, row) - p.o.data;
  out.k = at.k_row(p, 0) - p.k.data;
  out.v = at.v_row(p, 0) - p.v.data;
  out.partial = at.partial_index(p, row);
  out.steps = at.steps(p, kBlockN, true);
}

struct Shape {
  int batch, heads, group, pack, seqlen_q, seqlen_k, splits;
  MaskSpec mask;
  std::vector<int32_t> cu_q, cu_k;  // varlen
};

class PlaceOfBlocks : public DeviceTest {
 protected:
  static void check(const Shape& s) {
    const bool varlen = !s.cu_q.empty();
    const DeviceArray<int32_t> cu_q(varlen ? s.cu_q : std::vector<int32_t>{0}),
        cu_k(varlen ? s.cu_k : std::vector<int32_t>{0});
    ForwardParams p;  // strides that all differ; addresses that nobody reads
    p.q = {reinterpret_cast<uint16_t*>(0x1000000), varlen ? 0 : 1000003, 1009, 101, 8, false};
    p.k = {reinterpret_cast<uint16_t*>(0x2000000), varlen ? 0 : 1000033, 1013, 103, 8, false};
    p.v = {reinterpret_cast<uint16_t*>(0x3000000), varlen ? 0 : 1000037, 1019, 107, 8, false};
    p.o = {reinterpret_cast<uint16_t*>(0x4000000), varlen ? 0 : 1000039, 1021, 109, 8, false};
    p.cu_seqlens_q = varlen ? cu_q.data() : nullptr;
    p.cu_seqlens_k = varlen ? cu_k.data() : nullptr;
    p.seqlen_q = s.seqlen_q;
    p.seqlen_k = s.seqlen_k;
    p.mask = s.mask;
    p.batch = s.batch;
    p.num_heads = s.heads;
    p.group = s.group;
    p.pack = s.pack;
    p.m_blocks = (s.seqlen_q * s.pack + kBlockM - 1) / kBlockM;
    p.num_splits = s.splits;
    const int steps = (s.seqlen_k + kBlockN - 1) / kBlockN;
    p.split_blocks = (steps + s.splits - 1) / s.splits;
    const int tokens = varlen ? s.cu_q.back() : s.batch * s.seqlen_q;
    p.partial_rows = int64_t{tokens} * s.heads;
    p.partial_queries = varlen ? tokens : s.seqlen_q;
    for (const bool longest_first : {false, true}) {
      const int total = tokens * s.heads * s.splits;
      const DeviceArray<Row> rows(std::vector<Row>(total + kBlockM));
      const DeviceArray<int> count(std::vector<int>{0});
      const dim3 grid(p.m_blocks * s.splits, s.heads / s.pack, s.batch);
      list_rows<<<grid, kBlockM>>>(p, longest_first, rows.data(), count.data());
      ASSERT_EQ(count.get()[0], total);
      std::vector<Row> got = rows.get();
      got.resize(total);
      check_rows(s, p, got);
    }
  }

 private:
  static void check_rows(const Shape& s, const ForwardParams& p, const std::vector<Row>& rows) {
    const bool varlen = !s.cu_q.empty();
    std::map<std::tuple<int, int, int, int>, int> seen;
    std::map<int64_t, int> partials;
    // Steps of all splits of a row.
    std::map<std::tuple<int, int, int>, std::vector<int>> steps;
    for (const Row& r : rows) {
      ++seen[{r.batch, r.split, r.query, r.head}];
      ++partials[r.partial];
      const int q_start = varlen ? s.cu_q[r.batch] : 0, k_start = varlen ? s.cu_k[r.batch] : 0;
      const int n_q = varlen ? s.cu_q[r.batch + 1] - q_start : s.seqlen_q;
      const int n_k = varlen ? s.cu_k[r.batch + 1] - k_start : s.seqlen_k;
      EXPECT_LT(r.query, n_q);
      EXPECT_EQ(r.kv_head, r.head / s.group);
      const auto address = [&](const TensorRef& x, int64_t token, int head) {
        return r.batch * x.batch + token * x.seqlen + head * x.head;
      };
      EXPECT_EQ(r.q, address(p.q, q_start + r.query, r.head));
      EXPECT_EQ(r.o, address(p.o, q_start + r.query, r.head));
      EXPECT_EQ(r.k, address(p.k, k_start, r.kv_head));
      EXPECT_EQ(r.v, address(p.v, k_start, r.kv_head));
      EXPECT_EQ(r.partial / p.partial_rows, r.split);
      for (int i = r.steps.begin; i < r.steps.end; ++i) {
        steps[{r.batch, r.query, r.head}].push_back(i);
        if (!r.steps.is_full(i)) continue;
        for (int key = i * kBlockN; key < (i + 1) * kBlockN; ++key) {
          EXPECT_TRUE(s.mask.visible(r.query, key, Lengths{n_q, n_k})) << r.query << " " << key;
        }
      }
    }
    for (const auto& [row, times] : seen) EXPECT_EQ(times, 1);
    for (const auto& [index, times] : partials) EXPECT_EQ(times, 1);
    for (auto& [row, of_row] : steps) {
      const auto [batch, query, head] = row;
      const int n_q = varlen ? s.cu_q[batch + 1] - s.cu_q[batch] : s.seqlen_q;
      const int n_k = varlen ? s.cu_k[batch + 1] - s.cu_k[batch] : s.seqlen_k;
      for (int key = 0; key < n_k; ++key) {
        if (!s.mask.visible(query, key, Lengths{n_q, n_k})) continue;
        EXPECT_EQ(std::count(of_row.begin(), of_row.end(), key / kBlockN), 1)
            << query << " " << key;
      }
    }
  }
};

TEST_F(PlaceOfBlocks, EveryRowOnceAtItsAddress) {
  const MaskSpec causal = {kUnbounded, 0}, window = {20, 7};
  check({2, 4, 1, 1, 70, 90, 1, {}, {}, {}});
  check({2, 4, 2, 1, 70, 90, 1, causal, {}, {}});
  check({3, 6, 3, 3, 9, 200, 4, causal, {}, {}});
  check({2, 6, 3, 3, 20, 90, 1, causal, {}, {}});
  check({2, 8, 4, 4, 1, 333, 5, {}, {}, {}});
  check({1, 2, 1, 1, 100, 130, 3, window, {}, {}});
  check({4, 4, 2, 1, 65, 90, 1, causal, {0, 3, 3, 68, 70}, {0, 90, 95, 95, 140}});
  check({3, 4, 4, 4, 7, 150, 3, window, {0, 7, 8, 12}, {0, 150, 160, 250}});
}

}  // namespace
}  // namespace tilewise::cuda::test
