// Unusual calls that are right: sizes beyond 16 bits, packed gradients, broadcast inputs, null
// pointers of empty tensors, any stride order, the caller's threads.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "tests/capi/call.h"

namespace tilewise::test {
namespace {

// Plan, workspace and run of `problem`.
tilewise_status run_forward(const tilewise_problem& problem, tilewise_forward_params params,
                            const char* kernel = nullptr) {
  tilewise_plan_options options = TILEWISE_PLAN_OPTIONS_INIT;
  options.kernel = kernel;
  tilewise_plan* plan = nullptr;
  tilewise_status status = tilewise_plan_create(&problem, &options, &plan);
  if (status != TILEWISE_OK) return status;
  tilewise_plan_info info = TILEWISE_PLAN_INFO_INIT;
  if (status = tilewise_plan_get_info(plan, &info); status != TILEWISE_OK) return status;
  std::vector<char> workspace(info.workspace_bytes + 64);
  void* aligned = workspace.data();
  size_t room = workspace.size();
  params.workspace = std::align(64, info.workspace_bytes, aligned, room);
  params.workspace_bytes = info.workspace_bytes;
  status = tilewise_forward(plan, &params);
  tilewise_plan_destroy(plan);
  return status;
}

tilewise_problem problem_of(const char* text) {
  tilewise_problem p = TILEWISE_PROBLEM_INIT;
  EXPECT_EQ(tilewise_problem_parse(text, &p), TILEWISE_OK) << tilewise_last_error();
  return p;
}

// I13: B026, B105, B106
TEST(Accepted, BatchTimesHeadsAbove65535) {
  for (const char* text :
       {"fp32 b65535 sq1 h1 d8", "fp32 b65536 sq1 h1 d8", "fp32 b65537 sq1 h1 d8",
        "fp32 b131072 sq1 h1 d8", "fp32 b1 sq1 h65536 d8", "fp32 b256 sq1 h257 d8",
        "fp32 b65537 sq2 h1 d4"}) {
    SCOPED_TRACE(text);
    const tilewise_problem p = problem_of(text);
    const size_t size = static_cast<size_t>(p.batch * p.seqlen_q * p.num_heads * p.head_dim);
    const std::vector<float> ones(size, 1.0f);
    std::vector<float> v(size), o(size, -1.0f);
    const size_t row = static_cast<size_t>(p.head_dim);
    for (size_t i = 0; i < size; ++i)
      v[i] = static_cast<float>(i / row / static_cast<size_t>(p.seqlen_q));
    tilewise_forward_params params = TILEWISE_FORWARD_PARAMS_INIT;
    params.q = params.k = ones.data();
    params.v = v.data();
    params.o = o.data();
    ASSERT_EQ(run_forward(p, params), TILEWISE_OK) << tilewise_last_error();
    for (size_t i = 0; i < size; ++i) ASSERT_NEAR(o[i], v[i], 1e-6f * v[i]) << i;
  }
}

TEST(Accepted, SequenceAboveTwoToThe21) {
  tilewise_problem p = problem_of("fp32 b1 sq2097153 h1 d1 window:0,0");
  const size_t size = static_cast<size_t>(p.seqlen_q);
  std::vector<float> v(size), o(size, -1.0f), lse(size, -1.0f);
  for (size_t i = 0; i < size; ++i) v[i] = static_cast<float>(i);
  tilewise_forward_params params = TILEWISE_FORWARD_PARAMS_INIT;
  params.q = params.k = params.v = v.data();
  params.o = o.data();
  params.lse = lse.data();
  ASSERT_EQ(run_forward(p, params), TILEWISE_OK) << tilewise_last_error();
  for (size_t i = 0; i < size; ++i) ASSERT_NEAR(o[i], v[i], 1e-6f * v[i]) << i;  // its own key
  EXPECT_FLOAT_EQ(lse[1000], 1e6f);
  EXPECT_FLOAT_EQ(lse[size - 1], v[size - 1] * v[size - 1]);
}

TEST(Accepted, EmptyTensorsMayBeNull) {
  for (const char* text : {"fp32 b0 sq5 h2 d4", "fp32 b2 sq0 h2 d4", "fp32 b2 sq0 sk0 h2 d4",
                           "fp32 h2 d4 varlen:q=0,0:k=0,0"}) {
    SCOPED_TRACE(text);
    for (const int32_t direction : {TILEWISE_FORWARD, TILEWISE_BACKWARD}) {
      tilewise_problem p = TILEWISE_PROBLEM_INIT;
      if (std::strstr(text, "varlen") == nullptr) {
        p = problem_of(text);
      } else {
        p.varlen = 1;
        p.batch = 2;
        p.num_heads = p.num_heads_kv = 2;
        p.head_dim = p.head_dim_v = 4;
      }
      p.direction = direction;
      if (direction == TILEWISE_BACKWARD) p.seqlen_k = 0;
      tilewise_plan* plan = nullptr;
      ASSERT_EQ(tilewise_plan_create(&p, nullptr, &plan), TILEWISE_OK) << tilewise_last_error();
      tilewise_plan_info info = TILEWISE_PLAN_INFO_INIT;
      ASSERT_EQ(tilewise_plan_get_info(plan, &info), TILEWISE_OK);
      std::vector<char> room(info.workspace_bytes + 64);
      auto* workspace =
          reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64);
      const int32_t zeros[3] = {};
      std::vector<float> kv(2 * 5 * 2 * 4);
      const auto fill = [&](auto& params) {
        params.cu_seqlens_q = params.cu_seqlens_k = p.varlen ? zeros : nullptr;
        params.workspace = workspace;
        params.workspace_bytes = info.workspace_bytes;
      };
      tilewise_forward_params f = TILEWISE_FORWARD_PARAMS_INIT;
      tilewise_backward_params b = TILEWISE_BACKWARD_PARAMS_INIT;
      fill(f);
      fill(b);
      EXPECT_EQ(
          direction == TILEWISE_FORWARD ? tilewise_forward(plan, &f) : tilewise_backward(plan, &b),
          TILEWISE_OK)
          << tilewise_last_error();
      tilewise_plan_destroy(plan);
    }
  }
  // Keys that are not there: k and v may be null, o may not.
  const tilewise_problem p = problem_of("fp32 b1 sq2 sk0 h1 d4");
  const std::vector<float> q(8);
  std::vector<float> o(8, 5.0f), lse(2, 5.0f);
  tilewise_forward_params params = TILEWISE_FORWARD_PARAMS_INIT;
  params.q = q.data();
  params.o = o.data();
  params.lse = lse.data();
  EXPECT_EQ(run_forward(p, params), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ(o, std::vector<float>(8, 0.0f));
  params.o = nullptr;
  EXPECT_EQ(run_forward(p, params), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "o is null");
}

// dq, dk, dv of a (batch, seqlen, heads) or (batch, heads, seqlen) buffer that they share.
TEST(Accepted, PackedGradients) {
  for (const bool heads_first : {false, true}) {
    SCOPED_TRACE(heads_first);
    constexpr int64_t b = 2, s = 5, h = 4, hk = 2, d = 8, all = h + 2 * hk;
    tilewise_problem p = problem_of("fp32 b2 sq5 h4 hk2 d8 backward");
    const tilewise_strides strides = heads_first ? tilewise_strides{s * all * d, d, s * d, 1}
                                                 : tilewise_strides{s * all * d, all * d, d, 1};
    const int64_t step = heads_first ? s * d : d;  // to the next head
    std::vector<float> qkv(b * s * all * d, 0.5f), gradients(qkv.size(), -7.0f);
    const std::vector<float> o(b * s * h * d, 0.5f), lse(b * h * s, 2.0f);
    std::vector<float> dq(b * s * h * d), dk(b * s * hk * d), dv(dk.size());
    const auto run = [&](const tilewise_problem& problem, float* to_q, float* to_k, float* to_v) {
      tilewise_plan* plan = nullptr;
      EXPECT_EQ(tilewise_plan_create(&problem, nullptr, &plan), TILEWISE_OK);
      tilewise_plan_info info = TILEWISE_PLAN_INFO_INIT;
      EXPECT_EQ(tilewise_plan_get_info(plan, &info), TILEWISE_OK);
      std::vector<char> room(info.workspace_bytes + 64);
      tilewise_backward_params params = TILEWISE_BACKWARD_PARAMS_INIT;
      params.q = qkv.data();
      params.k = qkv.data() + h * step;
      params.v = qkv.data() + (h + hk) * step;
      params.o = params.do_ = o.data();
      params.lse = lse.data();
      params.dq = to_q;
      params.dk = to_k;
      params.dv = to_v;
      params.workspace =
          reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64);
      params.workspace_bytes = info.workspace_bytes;
      const tilewise_status status = tilewise_backward(plan, &params);
      tilewise_plan_destroy(plan);
      return status;
    };
    p.q = p.k = p.v = strides;
    ASSERT_EQ(run(p, dq.data(), dk.data(), dv.data()), TILEWISE_OK) << tilewise_last_error();
    p.dq = p.dk = p.dv = strides;
    float* packed = gradients.data();
    ASSERT_EQ(run(p, packed, packed + h * step, packed + (h + hk) * step), TILEWISE_OK)
        << tilewise_last_error();
    for (int64_t bi = 0; bi < b; ++bi) {
      for (int64_t si = 0; si < s; ++si) {
        const auto row = [&](int64_t head) {
          return packed + bi * strides.batch + si * strides.seqlen + head * step;
        };
        for (int64_t i = 0; i < h; ++i) {
          EXPECT_EQ(std::memcmp(row(i), &dq[((bi * s + si) * h + i) * d], d * 4), 0);
        }
        for (int64_t i = 0; i < hk; ++i) {
          EXPECT_EQ(std::memcmp(row(h + i), &dk[((bi * s + si) * hk + i) * d], d * 4), 0);
          EXPECT_EQ(std::memcmp(row(h + hk + i), &dv[((bi * s + si) * hk + i) * d], d * 4), 0);
        }
      }
    }
    // One head further, and dk would be written over dv.
    EXPECT_EQ(run(p, packed, packed + (h + 1) * step, packed + (h + hk) * step),
              TILEWISE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(tilewise_last_error()).find("dk"), std::string::npos);
  }
}

// B107: every stride of an input may be 0.
TEST(Accepted, BroadcastInputs) {
  Call plain({TILEWISE_BACKWARD}), broadcast({TILEWISE_BACKWARD});
  broadcast.problem.do_ = {0, 0, 0, 1};
  ASSERT_EQ(plain.create(), TILEWISE_OK);
  ASSERT_EQ(broadcast.create(), TILEWISE_OK) << tilewise_last_error();
  ASSERT_EQ(plain.run(), TILEWISE_OK);  // all elements of do are equal
  ASSERT_EQ(broadcast.run(), TILEWISE_OK) << tilewise_last_error();
  for (const Operand operand : {Operand::kDq, Operand::kDk, Operand::kDv}) {
    EXPECT_EQ(
        std::memcmp(plain.block(operand), broadcast.block(operand), plain.block_bytes(operand)), 0);
  }
}

// B135: layout is what the strides say.
TEST(Accepted, SwappedStridesGiveTheTransposedAnswer) {
  tilewise_problem p = problem_of("fp32 b1 sq4 h4 d2 causal");
  std::vector<float> x(4 * 4 * 2), straight(x.size()), swapped(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 37) % 11) * 0.25f;
  tilewise_forward_params params = TILEWISE_FORWARD_PARAMS_INIT;
  params.q = params.k = params.v = x.data();
  params.o = straight.data();
  ASSERT_EQ(run_forward(p, params), TILEWISE_OK) << tilewise_last_error();
  std::vector<float> transposed(x.size());
  for (size_t s = 0; s < 4; ++s) {
    for (size_t h = 0; h < 4; ++h) {
      for (size_t i = 0; i < 2; ++i) transposed[(h * 4 + s) * 2 + i] = x[(s * 4 + h) * 2 + i];
    }
  }
  p.q = p.k = p.v = p.o = {32, 2, 8, 1};
  params.q = params.k = params.v = transposed.data();
  params.o = swapped.data();
  ASSERT_EQ(run_forward(p, params), TILEWISE_OK) << tilewise_last_error();
  for (size_t s = 0; s < 4; ++s) {
    for (size_t h = 0; h < 4; ++h) {
      EXPECT_EQ(swapped[(h * 4 + s) * 2], straight[(s * 4 + h) * 2]);
    }
  }
  EXPECT_NE(swapped, straight);
}

TEST(Accepted, PoolOfTheCaller) {
  Call call({TILEWISE_FORWARD});
  call.options.threads = 4;
  call.options.kernel = "cpu.reference";  // a task for each head, however small
  ASSERT_EQ(call.create(), TILEWISE_OK);
  std::atomic<int64_t> tasks{0};
  tilewise_thread_pool pool = {
      [](void* mine, int64_t count, void (*task)(void*, int64_t), void* context) {
        *static_cast<std::atomic<int64_t>*>(mine) += count;
        for (int64_t i = count - 1; i >= 0; --i) task(context, i);
      },
      &tasks};
  ASSERT_EQ(call.run(), TILEWISE_OK);
  std::vector<std::byte> expected(call.block_bytes(Operand::kO));
  std::memcpy(expected.data(), call.block(Operand::kO), expected.size());
  call.reset();
  call.pool() = &pool;
  ASSERT_EQ(call.run(), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ(std::memcmp(expected.data(), call.block(Operand::kO), expected.size()), 0);
  EXPECT_GT(tasks, 0);
  EXPECT_LE(tasks, 4);
}

TEST(Accepted, KernelsHaveNames) {
  const int32_t count = tilewise_kernel_count();
  ASSERT_GT(count, 0);
  for (int32_t i = 0; i < count; ++i) {
    ASSERT_NE(tilewise_kernel_name(i), nullptr);
    const std::string name = tilewise_kernel_name(i), family = name.substr(0, name.find('.'));
    EXPECT_TRUE(family == "cpu" || family == "sm80" || family == "sm90") << name;
    EXPECT_STRNE(tilewise_kernel_summary(i), "");
  }
  EXPECT_STREQ(tilewise_kernel_name(count - 1), "cpu.reference");
  for (const int32_t i : {-1, count, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tilewise_kernel_name(i), nullptr);
    EXPECT_EQ(tilewise_kernel_summary(i), nullptr);
  }
}

TEST(Accepted, TextIsCutToTheBuffer) {
  const tilewise_problem p = problem_of("fp32 b1 sq3 h1 d4 causal");
  const std::string whole = "fp32 b1 sq3 h1 d4 causal";
  for (size_t capacity = 0; capacity <= whole.size() + 2; ++capacity) {
    char buffer[64];
    std::memset(buffer, '#', sizeof buffer);
    size_t needed = 0;
    ASSERT_EQ(tilewise_problem_print(&p, capacity == 0 ? nullptr : buffer, capacity, &needed),
              TILEWISE_OK);
    EXPECT_EQ(needed, whole.size() + 1);
    if (capacity > 0) {
      EXPECT_EQ(buffer, whole.substr(0, capacity - 1));
    }
    for (size_t i = capacity; i < sizeof buffer; ++i) EXPECT_EQ(buffer[i], '#');
  }
  EXPECT_EQ(tilewise_problem_print(&p, nullptr, 10, nullptr), TILEWISE_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tilewise::test
