// Large batches, strides past 2^31 elements, and workspace sizes: by sparse virtual memory, of
// which little is touched.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "harness/data.h"
#include "harness/problem_abi.h"
#include "support.h"

namespace tilewise::suite {
namespace {

// Address space whose pages come to be when touched.
class Sparse {
 public:
  explicit Sparse(size_t bytes) : bytes_(bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    base_ = p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
  }
  ~Sparse() {
    if (base_ != nullptr) munmap(base_, bytes_);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  std::byte* data() const { return base_; }

 private:
  size_t bytes_;
  std::byte* base_ = nullptr;
};

size_t element_at(const Strides& s, int64_t b, int64_t i, int64_t h) {
  return static_cast<size_t>(b * s.batch + i * s.seqlen + h * s.head);
}

// Copies a tensor row by row between two memories with strides of their own.
void copy_strided(const AttentionProblem& from, const std::byte* source, const AttentionProblem& to,
                  std::byte* target, TensorId id) {
  const Extents e = from.extents(id);
  const size_t size = static_cast<size_t>(size_of(from.dtype));
  for (int64_t b = 0; b < e.batch; ++b) {
    for (int64_t s = 0; s < e.seqlen; ++s) {
      for (int64_t h = 0; h < e.heads; ++h) {
        std::memcpy(target + element_at(to.stride(id), b, s, h) * size,
                    source + element_at(from.stride(id), b, s, h) * size,
                    static_cast<size_t>(e.dim) * size);
      }
    }
  }
}

// Runs `sparse` in memory of its own strides with the data of `compact`, and demands the same bits.
void expect_same_bits(const ProblemCase& compact, const AttentionProblem& sparse,
                      const std::string& kernel) {
  SCOPED_TRACE(print(sparse) + " " + kernel);
  Tensors t(compact);
  ASSERT_TRUE(harness::fill_inputs(t).ok());
  const Outputs want = run_as_is(t, with_kernel(kernel));
  const size_t size = static_cast<size_t>(size_of(sparse.dtype));

  std::vector<std::unique_ptr<Sparse>> memory(kNumTensors);
  std::byte* at[kNumTensors] = {};
  for (int i = 0; i < kNumTensors; ++i) {
    const TensorId id = static_cast<TensorId>(i);
    if (!sparse.backward() && id > TensorId::kO) continue;
    const Extents e = sparse.extents(id);
    const size_t last = element_at(sparse.stride(id), e.batch - 1, e.seqlen - 1, e.heads - 1);
    memory[i] = std::make_unique<Sparse>((last + static_cast<size_t>(e.dim)) * size);
    at[i] = memory[i]->data();
    if (at[i] == nullptr) GTEST_SKIP() << "no address space for " << print(sparse);
    if (!is_output(id, sparse.direction)) {
      copy_strided(compact.problem, static_cast<const std::byte*>(t.pointer(id)), sparse, at[i],
                   id);
    }
  }
  const auto pointer = [&](TensorId id) { return at[static_cast<int>(id)]; };
  const tilewise_problem problem = harness::to_abi(sparse);
  tilewise_plan_options options = TILEWISE_PLAN_OPTIONS_INIT;
  options.kernel = kernel.c_str();
  tilewise_plan* plan = nullptr;
  ASSERT_EQ(tilewise_plan_create(&problem, &options, &plan), TILEWISE_OK) << tilewise_last_error();
  tilewise_plan_info info = TILEWISE_PLAN_INFO_INIT;
  ASSERT_EQ(tilewise_plan_get_info(plan, &info), TILEWISE_OK);
  const Sparse workspace(info.workspace_bytes + 64);
  std::vector<float> lse(t.packed_lse().size());
  const auto run = [&](auto params, auto function) {
    params.q = pointer(TensorId::kQ);
    params.k = pointer(TensorId::kK);
    params.v = pointer(TensorId::kV);
    params.o = pointer(TensorId::kO);
    params.lse = lse.data();
    params.workspace = workspace.data();
    params.workspace_bytes = info.workspace_bytes;
    ASSERT_EQ(function(plan, &params), TILEWISE_OK) << tilewise_last_error();
  };
  if (sparse.backward()) {
    lse = t.packed_lse();
    tilewise_backward_params params = TILEWISE_BACKWARD_PARAMS_INIT;
    params.do_ = pointer(TensorId::kDo);
    params.dq = pointer(TensorId::kDq);
    params.dk = pointer(TensorId::kDk);
    params.dv = pointer(TensorId::kDv);
    run(params, tilewise_backward);
  } else {
    run(tilewise_forward_params TILEWISE_FORWARD_PARAMS_INIT, tilewise_forward);
    EXPECT_EQ(lse, want.lse);
  }
  tilewise_plan_destroy(plan);
  for (const TensorId id : {TensorId::kO, TensorId::kDq, TensorId::kDk, TensorId::kDv}) {
    if (!is_output(id, sparse.direction)) continue;
    std::vector<std::byte> got(t.packed(id).size());
    AttentionProblem dense = compact.problem;
    set_layout(dense, Layout::kBshd);
    copy_strided(sparse, pointer(id), dense, got.data(), id);
    EXPECT_EQ(got, t.packed(id)) << name_of(id);
  }
}

constexpr int64_t k2To30 = int64_t{1} << 30;

// Every tensor of 5 batches, 2^30 elements apart; then positions; then heads.
TEST(Large, StridesPast2To31_B082_B086_C10) {
  for (const char* shape : {"b5 sq9 sk40 h2 hk1 d32 causal", "b5 sq1 sk100 h4 hk2 d64",
                            "b5 sq9 sk40 h2 hk1 d32 causal backward"}) {
    for (const char* dtype : {"fp16", "fp32"}) {
      const ProblemCase compact = case_of(format("{} {}", dtype, shape));
      AttentionProblem by_batch = compact.problem, by_position = compact.problem,
                       by_head = compact.problem;
      for (int i = 0; i < kNumTensors; ++i) {
        const TensorId id = static_cast<TensorId>(i);
        const Extents e = compact.problem.extents(id);
        by_batch.stride(id).batch = k2To30;
        // Token-major: row stride above 2^31 / seqlen.
        by_position.stride(id) = {e.heads * e.dim, k2To30 / 8 + 64, e.dim};
        by_head.stride(id) = {e.seqlen * e.dim, e.dim, 2 * k2To30 + 8};
      }
      for (const std::string& kernel : kernels_for(compact.problem)) {
        if (kernel != "cpu.reference" && kernel.find("scalar") != std::string::npos) continue;
        expect_same_bits(compact, by_batch, kernel);
        expect_same_bits(compact, by_position, kernel);
        expect_same_bits(compact, by_head, kernel);
        if (HasFailure()) return;
      }
    }
  }
}

// The last batch of a large one equals the same data run alone.
void expect_last_batch_equals_alone(const std::string& line, int64_t batch) {
  const std::string tail = line.substr(line.find(' '));
  const std::string dtype = line.substr(0, line.find(' '));
  const ProblemCase many = case_of(format("{} b{}{}", dtype, batch, tail));
  const ProblemCase one = case_of(format("{} b1{}", dtype, tail));
  Tensors all(many), alone(one);
  ASSERT_TRUE(harness::fill_inputs(all).ok());
  ASSERT_TRUE(harness::fill_inputs(alone).ok());
  for (const TensorId id : {TensorId::kQ, TensorId::kK, TensorId::kV, TensorId::kDo}) {
    if (id == TensorId::kDo && !one.problem.backward()) continue;
    const Extents e = one.problem.extents(id);
    for (int64_t at = 0; at < e.seqlen * e.heads * e.dim; ++at) {
      const int64_t x = at % e.dim, h = at / e.dim % e.heads, s = at / e.dim / e.heads;
      alone.set(id, 0, s, h, x, all.get(id, batch - 1, s, h, x));
    }
  }
  run_as_is(all);
  run_as_is(alone);
  for (const TensorId id : {TensorId::kO, TensorId::kDq, TensorId::kDk, TensorId::kDv}) {
    if (!one.problem.backward() && id != TensorId::kO) continue;
    const Extents e = one.problem.extents(id);
    for (int64_t at = 0; at < e.seqlen * e.heads * e.dim; ++at) {
      const int64_t x = at % e.dim, h = at / e.dim % e.heads, s = at / e.dim / e.heads;
      ASSERT_EQ(all.get(id, batch - 1, s, h, x), alone.get(id, 0, s, h, x))
          << print(many) << " " << name_of(id);
    }
  }
}

TEST(Large, BatchesPastAGridsLimit_B026_B079_B080_B105_B106_I13) {
  for (const int64_t batch : {65535, 65536, 65537, 131072}) {
    expect_last_batch_equals_alone("fp32 sq1 h1 d8", batch);
  }
  expect_last_batch_equals_alone("fp32 sq16 h1 d80", 20000);
  expect_last_batch_equals_alone("fp32 sq10 h1 d16", 40000);
  expect_last_batch_equals_alone("fp16 sq1 h65536 d4", 2);
  expect_last_batch_equals_alone("bf16 sq1 h16 d128 backward", 2300);
  expect_last_batch_equals_alone("fp32 sq3 h2 d16 backward", 15000);
}

// Sq = 2^21 + 1 rows of o, dO and dq: rows past 2^21 are not lost. q, o and dO repeat one row.
TEST(Large, MoreThan2To21QueryRows_B089_I13) {
  const int64_t rows = (int64_t{1} << 21) + 1;
  const AttentionProblem p = [&] {
    AttentionProblem made = case_of(format("fp16 b1 sq{} sk2 h1 d8 backward", rows)).problem;
    for (const TensorId id : {TensorId::kQ, TensorId::kO, TensorId::kDo}) made.stride(id) = {};
    return made;
  }();
  const ProblemCase one = case_of("fp16 b1 sq1 sk2 h1 d8 backward");
  for (const std::string& kernel : tiled_kernels_for(p)) {
    if (kernel.find("scalar") != std::string::npos) continue;
    Tensors t(one);
    ASSERT_TRUE(harness::fill_inputs(t).ok());
    run_as_is(t, with_kernel(kernel));
    const std::vector<float> lse(static_cast<size_t>(rows), t.lse()[0]);
    std::vector<uint16_t> dq(static_cast<size_t>(rows) * 8, 0x7e00), dk(16), dv(16);
    const tilewise_problem problem = harness::to_abi(p);
    tilewise_plan_options options = TILEWISE_PLAN_OPTIONS_INIT;
    options.kernel = kernel.c_str();
    tilewise_plan* plan = nullptr;
    ASSERT_EQ(tilewise_plan_create(&problem, &options, &plan), TILEWISE_OK)
        << tilewise_last_error();
    tilewise_plan_info info = TILEWISE_PLAN_INFO_INIT;
    ASSERT_EQ(tilewise_plan_get_info(plan, &info), TILEWISE_OK);
    const Sparse workspace(info.workspace_bytes + 64);
    tilewise_backward_params params = TILEWISE_BACKWARD_PARAMS_INIT;
    params.q = t.pointer(TensorId::kQ);
    params.k = t.pointer(TensorId::kK);
    params.v = t.pointer(TensorId::kV);
    params.o = t.pointer(TensorId::kO);
    params.do_ = t.pointer(TensorId::kDo);
    params.lse = lse.data();
    params.dq = dq.data();
    params.dk = dk.data();
    params.dv = dv.data();
    params.workspace = workspace.data();
    params.workspace_bytes = info.workspace_bytes;
    ASSERT_EQ(tilewise_backward(plan, &params), TILEWISE_OK) << tilewise_last_error();
    tilewise_plan_destroy(plan);
    const std::vector<std::byte> want = t.packed(TensorId::kDq);
    for (const int64_t row : {int64_t{0}, rows / 2, rows - 2, rows - 1}) {
      EXPECT_EQ(std::memcmp(dq.data() + row * 8, want.data(), 16), 0) << kernel << " row " << row;
    }
    for (const uint16_t bits : dk) EXPECT_NE(bits, 0x7e00) << kernel;
  }
}

uint64_t workspace_of(const std::string& line, int threads = 1) {
  const tilewise_problem problem = harness::to_abi(*parse_problem(line));
  tilewise_plan_options options = TILEWISE_PLAN_OPTIONS_INIT;
  options.threads = threads;
  tilewise_plan* plan = nullptr;
  EXPECT_EQ(tilewise_plan_create(&problem, &options, &plan), TILEWISE_OK)
      << line << ": " << tilewise_last_error();
  tilewise_plan_info info = TILEWISE_PLAN_INFO_INIT;
  EXPECT_EQ(tilewise_plan_get_info(plan, &info), TILEWISE_OK);
  EXPECT_NE(std::string_view(info.kernel), "cpu.reference") << line;
  tilewise_plan_destroy(plan);
  return info.workspace_bytes;
}

constexpr uint64_t kMiB = 1 << 20;

// Forward scratch is at most 4 MiB a thread at d <= 128 whatever the lengths, beside the list of
// tasks (64 bytes for hundreds of query rows); the backward's total stays within 64 MiB or what one
// head needs, beside scratch of the same kind.
TEST(Workspace, StaysWithinItsBounds_C9_B091_B116) {
  for (const CpuIsa isa : levels_here()) {
    const IsaScope scope(isa);
    for (const std::string dtype : {"fp32", "fp16", "bf16"}) {
      struct Size {
        const char* rest;
        uint64_t query_rows;
      };
      for (const Size& size :
           {Size{" b4096 sq65536 h128 d128", uint64_t{1} << 35},
            Size{" b1 sq8192 h8 hk1 d128 causal", 65536}, Size{" b1 sq1000000 h1 d64", 1000000},
            Size{" varlen:b=4096:total=70000,70000:max=65536,65536 h8 d128", 560000}}) {
        const uint64_t list = size.query_rows / 8;
        EXPECT_LE(workspace_of(dtype + size.rest), 4 * kMiB + list) << dtype << size.rest;
        EXPECT_LE(workspace_of(dtype + size.rest, 7), 28 * kMiB + list) << dtype << size.rest;
      }
      // No hidden fallback for a large head dim with grouped heads: nothing of O(S^2).
      EXPECT_LE(workspace_of(dtype + " b1 sq8192 h8 hk2 d320"), 4 * kMiB);
      EXPECT_LE(workspace_of(dtype + " b1 sq65536 h8 hk2 d320"), 4 * kMiB);
    }
  }
}

TEST(Workspace, OfTheBackwardStaysWithinItsBounds_C9_B091) {
  if (tiled_kernels_for(*parse_problem("fp32 b1 sq64 h1 d64 backward")).empty()) {
    GTEST_SKIP() << "only the reference computes gradients here";
  }
  for (const CpuIsa isa : levels_here()) {
    const IsaScope scope(isa);
    for (const std::string dtype : {"fp32", "fp16", "bf16"}) {
      for (const char* rest : {" b2 sq8192 h16 d128 backward", " b1 sq2048 h64 hk8 d64 backward",
                               " b64 sq512 h16 d128 causal backward"}) {
        EXPECT_LE(workspace_of(dtype + rest, 2), (64 + 8) * kMiB) << dtype << rest;
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::suite
