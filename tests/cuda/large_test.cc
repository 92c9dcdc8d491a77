// Sizes past 2^31 and 2^32 elements, and past the limits of a launch's grid.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "core/format.h"
#include "harness/check.h"
#include "tests/cuda/device_case.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

std::vector<TensorId> tensors_of(const AttentionProblem& p) {
  std::vector<TensorId> all = {TensorId::kQ, TensorId::kK, TensorId::kV, TensorId::kO};
  if (p.backward()) {
    all.insert(all.end(), {TensorId::kDo, TensorId::kDq, TensorId::kDk, TensorId::kDv});
  }
  return all;
}

int64_t element_at(const Strides& s, int64_t b, int64_t i, int64_t h) {
  return b * s.batch + i * s.seqlen + h * s.head;
}

class Large : public DeviceTest {
 protected:
  // Memory for `count` elements, or null when the device has less.
  static std::unique_ptr<DeviceArray<uint16_t>> elements(int64_t count) {
    size_t free = 0, total = 0;
    require(cudaMemGetInfo(&free, &total));
    const size_t bytes = 2 * static_cast<size_t>(count);
    if (bytes + (size_t{1} << 30) > free) return nullptr;
    return std::make_unique<DeviceArray<uint16_t>>(static_cast<size_t>(count));
  }

  // Copies the rows of a tensor between the host, where it is dense, and the device.
  static void copy_rows(const AttentionProblem& p, TensorId id, std::byte* dense, uint16_t* device,
                        cudaMemcpyKind kind) {
    const Extents e = p.extents(id);
    const size_t bytes = 2 * static_cast<size_t>(e.dim);
    for (int64_t row = 0; row < e.batch * e.seqlen * e.heads; ++row) {
      const int64_t h = row % e.heads, i = row / e.heads % e.seqlen, b = row / e.heads / e.seqlen;
      uint16_t* const far = device + element_at(p.stride(id), b, i, h);
      std::byte* const near = dense + static_cast<size_t>(row) * bytes;
      if (kind == cudaMemcpyHostToDevice) {
        require(cudaMemcpy(far, near, bytes, kind));
      } else {
        require(cudaMemcpy(near, far, bytes, kind));
      }
    }
  }

  // The data of a compact case under other strides gives the same bits, by the kernel that those
  // strides need.
  static void expect_same_bits(const ProblemCase& compact, const AttentionProblem& wide) {
    SCOPED_TRACE(print(wide));
    const SharedPlan plan = make_plan(wide);
    DeviceCase c(compact, nullptr, make_plan(compact.problem, 0, info_of(plan).kernel));
    const Bits want = c.run();
    std::array<std::unique_ptr<DeviceArray<uint16_t>>, kNumTensors> memory;
    uint16_t* at[kNumTensors] = {};
    for (const TensorId id : tensors_of(wide)) {
      const Extents e = wide.extents(id);
      const int64_t last = element_at(wide.stride(id), e.batch - 1, e.seqlen - 1, e.heads - 1);
      const auto i = static_cast<size_t>(id);
      memory[i] = elements(last + e.dim);
      if (memory[i] == nullptr) GTEST_SKIP() << "too little device memory for " << print(wide);
      at[i] = memory[i]->data();
      if (is_output(id, wide.direction)) continue;
      std::vector<std::byte> dense = c.packed(id);
      copy_rows(wide, id, dense.data(), at[i], cudaMemcpyHostToDevice);
    }
    ASSERT_EQ(info_of(plan).workspace_bytes, info_of(c.plan()).workspace_bytes);
    const DeviceArray<float> lse(std::max<size_t>(1, want.lse.size()));  // of a forward
    const auto of = [&](TensorId id) { return at[static_cast<int>(id)]; };
    c.params.q = c.backward.q = of(TensorId::kQ);
    c.params.k = c.backward.k = of(TensorId::kK);
    c.params.v = c.backward.v = of(TensorId::kV);
    c.params.o = of(TensorId::kO);
    c.params.lse = lse.data();
    c.backward.o = of(TensorId::kO);
    c.backward.do_ = of(TensorId::kDo);
    c.backward.dq = of(TensorId::kDq);
    c.backward.dk = of(TensorId::kDk);
    c.backward.dv = of(TensorId::kDv);
    ASSERT_EQ(c.launch(plan), TILEWISE_OK) << tilewise_last_error();
    require(cudaDeviceSynchronize());
    Bits got;
    for (const TensorId id : reproducible(wide)) {
      std::vector<std::byte> dense(c.packed(id).size());
      copy_rows(wide, id, dense.data(), of(id), cudaMemcpyDeviceToHost);
      got.elements.insert(got.elements.end(), dense.begin(), dense.end());
    }
    if (!wide.backward()) got.lse = lse.get();
    EXPECT_TRUE(got == want);
  }

  // `rows` copies of what lies at the start of the memory, one behind the other.
  static void repeat(uint16_t* memory, int64_t elements_of_one, int64_t rows) {
    for (int64_t there = 1; there < rows;) {
      const int64_t more = std::min(there, rows - there);
      require(cudaMemcpy(memory + there * elements_of_one, memory,
                         2 * static_cast<size_t>(more * elements_of_one),
                         cudaMemcpyDeviceToDevice));
      there += more;
    }
  }
};

// Batches, or positions, or heads, whose last lies past 2^31 or 2^32 elements; by vectors and by
// single elements, in one piece and split.
TEST_F(Large, StridesPast2To31_C10_B082_B086) {
  constexpr int64_t k2To31 = int64_t{1} << 31;
  for (const char* line :
       {"bf16 b3 sq9 sk40 h3 hk3 d32 causal", "fp16 b3 sq1 sk700 h3 d64",
        "bf16 b3 sq9 sk40 h3 hk3 d32 causal softcap:20", "fp16 b3 sq1 sk700 h3 d64 softcap:9",
        "bf16 b2 sq9 sk40 h2 hk2 d32 causal backward deterministic",
        "fp16 b2 sq9 sk40 h2 hk2 d32 softcap:20 backward deterministic"}) {
    for (const int64_t odd : {0, 1}) {
      const ProblemCase compact = case_of(line);
      // Single elements are loaded by the general kernels, which have bits of their own.
      if (odd != 0 && compact.problem.softcap == 0) continue;
      AttentionProblem by_batch = compact.problem, by_position = compact.problem,
                       by_head = compact.problem;
      for (const TensorId id : tensors_of(compact.problem)) {
        const Extents e = compact.problem.extents(id);
        by_batch.stride(id).batch = k2To31 + 64 + odd;
        // The last position lies past 2^32 elements.
        const int64_t steps = std::max<int64_t>(1, e.seqlen - 1);
        by_position.stride(id) = {e.heads * e.dim, (2 * k2To31 / steps + 8) / 8 * 8 + 8 + odd,
                                  e.dim};
        by_head.stride(id) = {e.seqlen * e.dim, e.dim, k2To31 + 8 + odd};
      }
      expect_same_bits(compact, by_batch);
      expect_same_bits(compact, by_position);
      expect_same_bits(compact, by_head);
    }
  }
}

// Dense tensors of more than 2^32 elements: rows of q that are all alike give rows of o that are.
TEST_F(Large, DenseTensorsPast2To32_C10_B089) {
  constexpr int64_t kRows = (int64_t{1} << 22) + 1, kHeads = 16, kDim = 64;
  const AttentionProblem p =
      case_of(format("bf16 b1 sq{} sk96 h{} d{}", kRows, kHeads, kDim)).problem;
  constexpr int64_t kElements = kRows * kHeads * kDim;
  const auto q = elements(kElements), o = elements(kElements);
  if (q == nullptr || o == nullptr) GTEST_SKIP() << "too little device memory";
  DeviceCase one(format("bf16 b1 sq1 sk96 h{} d{} data:zero", kHeads, kDim));  // q = 0
  // Splits would add up in another order.
  ASSERT_EQ(info_of(one.plan()).num_splits, 1);
  const Bits want = one.run();
  require(cudaMemset(q->data(), 0, 2 * kElements));
  require(cudaMemset(o->data(), 0xff, 2 * kElements));
  const DeviceArray<float> lse(static_cast<size_t>(kRows * kHeads));
  tilewise_forward_params params = one.params;
  params.q = q->data();
  params.o = o->data();
  params.lse = lse.data();
  const SharedPlan plan = make_plan(p);
  ASSERT_EQ(tilewise_forward(plan.get(), &params), TILEWISE_OK) << tilewise_last_error();
  require(cudaDeviceSynchronize());
  for (int64_t row = 0; row < kRows; row += row < kRows - 2000 ? 1009 : 1) {
    std::vector<std::byte> got(want.elements.size());
    require(cudaMemcpy(got.data(), o->data() + row * kHeads * kDim, got.size(),
                       cudaMemcpyDeviceToHost));
    ASSERT_TRUE(got == want.elements) << "row " << row;
  }
  const std::vector<float> got_lse = lse.get();
  for (int64_t i = 0; i < kRows * kHeads; ++i) ASSERT_EQ(got_lse[i], want.lse[i / kRows]) << i;
}

// The same of a backward and 2^31: rows of q and dO that are all alike give rows of dq that are.
TEST_F(Large, DenseBackwardPast2To31_C10_B089) {
  constexpr int64_t kRows = (int64_t{1} << 21) + 1, kHeads = 16, kDim = 64, kRow = kHeads * kDim;
  const AttentionProblem p =
      case_of(format("bf16 b1 sq{} sk96 h{} d{} backward", kRows, kHeads, kDim)).problem;
  const SharedPlan plan = make_plan(p);
  const size_t workspace_bytes = info_of(plan).workspace_bytes;
  const auto o = elements(kRows * kRow), d_o = elements(kRows * kRow), q = elements(kRows * kRow),
             dq = elements(kRows * kRow),
             workspace = elements(static_cast<int64_t>(workspace_bytes / 2));
  if (!o || !d_o || !q || !dq || !workspace) GTEST_SKIP() << "too little device memory";
  // One block of keys: a single addition, so that the order of additions does not matter.
  DeviceCase one(format("bf16 b1 sq1 sk96 h{} d{} data:zero backward deterministic", kHeads, kDim));
  one.run();
  const std::vector<std::byte> want = one.packed(TensorId::kDq);
  tilewise_backward_params params = one.backward;
  const auto set_rows = [&](const auto& rows, const void* first) {
    require(cudaMemcpy(rows->data(), first, 2 * kRow, cudaMemcpyDeviceToDevice));
    repeat(rows->data(), kRow, kRows);
  };
  set_rows(q, params.q);
  set_rows(o, params.o);
  set_rows(d_o, params.do_);
  require(cudaMemset(dq->data(), 0xff, 2 * kRows * kRow));
  std::vector<float> one_lse(kHeads), lse(kHeads * kRows);
  require(cudaMemcpy(one_lse.data(), params.lse, kHeads * sizeof(float), cudaMemcpyDeviceToHost));
  for (int64_t i = 0; i < kHeads * kRows; ++i) lse[i] = one_lse[i / kRows];
  const DeviceArray<float> lse_gmem(lse);
  params.q = q->data();
  params.o = o->data();
  params.do_ = d_o->data();
  params.dq = dq->data();
  params.lse = lse_gmem.data();
  params.workspace = workspace->data();
  params.workspace_bytes = workspace_bytes;
  ASSERT_EQ(tilewise_backward(plan.get(), &params), TILEWISE_OK) << tilewise_last_error();
  require(cudaDeviceSynchronize());
  for (int64_t row = 0; row < kRows; row += row < kRows - 500 ? 1009 : 1) {
    std::vector<std::byte> got(want.size());
    require(cudaMemcpy(got.data(), dq->data() + row * kRow, got.size(), cudaMemcpyDeviceToHost));
    ASSERT_TRUE(got == want) << "row " << row;
  }
}

TEST_F(Large, BatchesAndHeadsPastAGridsLimit_B026_B105_B106_I13) {
  for (const char* line :
       {"bf16 b65535 sq1 h1 d8", "fp16 b65536 sq1 h1 d8", "bf16 b65537 sq2 sk3 h1 d8 causal",
        "fp16 b131072 sq1 h1 d8", "bf16 b66000 sq1 sk9 h2 hk1 d16", "bf16 b2 sq1 h65535 d8",
        "fp16 b1 sq2097153 sk2 h1 d8", "bf16 b65537 sq1 sk3 h1 d8 backward deterministic"}) {
    harness::CheckOptions options;
    options.run.cuda_device = 0;
    const harness::CheckReport report = harness::check_case(case_of(line), options);
    EXPECT_TRUE(report.ok) << report.line << "\n" << report.summary();
  }
}

}  // namespace
}  // namespace tilewise::cuda::test
