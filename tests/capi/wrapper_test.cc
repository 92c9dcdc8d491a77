// tilewise.hpp, as its users see it.
#include "tilewise/tilewise.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <type_traits>
#include <vector>

namespace {

const tilewise::Problem kProblem{.dtype = tilewise::fp32,
                                 .batch = 2,
                                 .seqlen_q = 5,
                                 .num_heads = 4,
                                 .num_heads_kv = 2,
                                 .head_dim = 8,
                                 .mask = tilewise::causal()};

static_assert(!std::is_copy_constructible_v<tilewise::ForwardPlan>);
static_assert(std::is_nothrow_move_constructible_v<tilewise::BackwardPlan>);

TEST(Wrapper, ForwardAndBackward) {
  auto forward = tilewise::Plan::forward(kProblem, tilewise::cpu(1));
  ASSERT_TRUE(forward) << forward.error().message;
  auto backward = tilewise::Plan::backward(kProblem, tilewise::cpu(1));
  ASSERT_TRUE(backward) << backward.error().message;
  EXPECT_EQ(forward->threads(), 1);
  EXPECT_NE(std::string(forward->kernel()), "");

  const std::vector<float> q(2 * 5 * 4 * 8, 0.5f), k(2 * 5 * 2 * 8, 0.25f), v(k.size(), 3.0f);
  const std::vector<float> gradient(q.size(), 1.0f);
  std::vector<float> o(q.size()), lse(2 * 4 * 5), dq(q.size()), dk(k.size()), dv(v.size());
  const tilewise::Buffer workspace(forward->workspace_bytes());
  const tilewise::Status ran = forward->run(
      {.q = q.data(), .k = k.data(), .v = v.data(), .o = o.data(), .lse = lse.data()}, workspace);
  ASSERT_TRUE(ran) << ran.message();
  EXPECT_STREQ(ran.message(), "");
  for (const float x : o) EXPECT_FLOAT_EQ(x, 3.0f);

  const tilewise::Buffer scratch(backward->workspace_bytes());
  const tilewise::Status back = backward->run({.q = q.data(),
                                               .k = k.data(),
                                               .v = v.data(),
                                               .o = o.data(),
                                               .do_ = gradient.data(),
                                               .lse = lse.data(),
                                               .dq = dq.data(),
                                               .dk = dk.data(),
                                               .dv = dv.data()},
                                              scratch);
  ASSERT_TRUE(back) << back.message();
  float sum = 0;
  for (const float x : dv) sum += x;
  EXPECT_NEAR(sum, 2 * 5 * 4 * 8, 1e-3);  // every row of P sums to 1
}

TEST(Wrapper, ErrorsCarryTheText) {
  tilewise::Problem bad = kProblem;
  bad.num_heads = 3;
  const auto plan = tilewise::Plan::forward(bad);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, TILEWISE_INVALID_ARGUMENT);
  EXPECT_NE(plan.error().message.find("num_heads"), std::string::npos);
  const auto cuda = tilewise::Plan::forward(kProblem, tilewise::cuda(0));
  ASSERT_FALSE(cuda);
  EXPECT_EQ(cuda.error().code, TILEWISE_DEVICE_ERROR);
  auto forced = tilewise::cpu();
  forced.kernel = "no.such.kernel";
  EXPECT_EQ(tilewise::Plan::backward(kProblem, forced).error().code, TILEWISE_INVALID_ARGUMENT);

  const auto good = tilewise::Plan::forward(kProblem);
  ASSERT_TRUE(good);
  const tilewise::Status status = good->run({});
  EXPECT_FALSE(status);
  EXPECT_EQ(status.code(), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(status.message(), "q is null");
}

TEST(Wrapper, ProblemsReachTheLibraryWhole) {
  tilewise::Problem p = kProblem;
  EXPECT_EQ(*tilewise::to_text(p), "fp32 b2 sq5 h4 hk2 d8 causal");
  p = {.dtype = tilewise::bf16,
       .batch = 3,
       .seqlen_q = 7,
       .seqlen_k = 9,
       .num_heads = 4,
       .head_dim = 16,
       .head_dim_v = 8,
       .mask = tilewise::window(5, 2, tilewise::Corner::top_left),
       .softmax_scale = 0.5f,
       .softcap = 30,
       .alibi = true,
       .q = tilewise::bhsd(7, 4, 16)};
  EXPECT_EQ(*tilewise::to_text(p),
            "bf16 b3 sq7 sk9 h4 d16 dv8 window:5,2 topleft scale:0.5 softcap:30 alibi "
            "stride:q=448,16,112");
  EXPECT_EQ(*tilewise::to_text(
                {.batch = 2, .num_heads = 1, .head_dim = 4, .varlen = tilewise::Varlen{5, 6, 4, 5}},
                tilewise::Direction::backward),
            "fp32 h1 d4 varlen:b=2:total=5,6:max=4,5 backward");
}

TEST(Wrapper, DevicesAndReasons) {
  EXPECT_EQ(tilewise::device_count(TILEWISE_CPU), 1);
  EXPECT_EQ(tilewise::device_count(TILEWISE_CUDA), 0);
  EXPECT_EQ(tilewise::device_count(77), 0);
  EXPECT_TRUE(tilewise::device_info());
  EXPECT_EQ(tilewise::device_info(tilewise::cuda(3)).error().code, TILEWISE_DEVICE_ERROR);
  const auto reasons = tilewise::explain(kProblem, tilewise::cpu(1));
  ASSERT_TRUE(reasons) << reasons.error().message;
  EXPECT_NE(reasons->find("\tchosen\t"), std::string::npos);
  EXPECT_NE(reasons->find("cpu.reference\t"), std::string::npos);
}

TEST(Wrapper, Merge) {
  // Two halves of equal weight; the second row of the second part is empty.
  const std::vector<float> o1 = {1, 2, 3, 4}, o2 = {3, 4, 9, 9};
  const std::vector<float> lse1 = {0, 1}, lse2 = {0, -INFINITY};
  const void* o_parts[] = {o1.data(), o2.data()};
  const float* lse_parts[] = {lse1.data(), lse2.data()};
  std::vector<float> o(4), lse(2);
  const tilewise::MergeTensors t{.o_parts = o_parts,
                                 .lse_parts = lse_parts,
                                 .num_parts = 2,
                                 .o = o.data(),
                                 .lse = lse.data(),
                                 .seqlen = 2,
                                 .head_dim = 2};
  const tilewise::Status status = tilewise::merge(t);
  ASSERT_TRUE(status) << status.message();
  EXPECT_EQ(o, (std::vector<float>{2, 3, 3, 4}));
  EXPECT_FLOAT_EQ(lse[0], std::log(2.0f));
  EXPECT_EQ(lse[1], 1.0f);
}

}  // namespace
