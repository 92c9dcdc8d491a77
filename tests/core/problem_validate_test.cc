// validate(): every refusal names the field and its value; and the hash and sizes of problems.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <unordered_set>

#include "core/problem.h"
#include "random_problem.h"

namespace tilewise {
namespace {

using Edit = std::function<void(AttentionProblem&)>;

AttentionProblem dense() { return *parse_problem("fp32 b2 sq5 sk7 h4 hk2 d8 dv6 backward"); }
AttentionProblem varlen() {
  return *parse_problem("fp32 varlen:b=3:total=9,12:max=5,7 h4 hk2 d8 dv6 backward");
}

void expect_refused(const char* field, const char* value, StatusCode code, const Edit& edit,
                    AttentionProblem p = dense()) {
  ASSERT_TRUE(validate(p).ok());
  edit(p);
  const Status s = validate(p);
  ASSERT_FALSE(s.ok()) << field << " " << value;
  EXPECT_EQ(s.code(), code) << s.message();
  EXPECT_NE(s.message().find(field), std::string::npos) << s.message();
  EXPECT_NE(s.message().find(value), std::string::npos) << s.message();
}
void expect_invalid(const char* field, const char* value, const Edit& edit) {
  expect_refused(field, value, StatusCode::kInvalidArgument, edit);
}
void expect_invalid_varlen(const char* field, const char* value, const Edit& edit) {
  expect_refused(field, value, StatusCode::kInvalidArgument, edit, varlen());
}

TEST(Validate, Sizes_I5_B053) {
  expect_invalid("batch", "-1", [](auto& p) { p.batch = -1; });
  expect_invalid("seqlen_q", "-7", [](auto& p) { p.seqlen_q = -7; });
  expect_invalid("seqlen_k", "-7", [](auto& p) { p.seqlen_k = -7; });
  for (const int64_t bad : {int64_t{0}, int64_t{-4}}) {
    const std::string text = to_text(bad);
    expect_invalid("num_heads", text.c_str(), [=](auto& p) { p.num_heads = bad; });
    expect_invalid("num_heads_kv", text.c_str(), [=](auto& p) { p.num_heads_kv = bad; });
    expect_invalid("head_dim", text.c_str(), [=](auto& p) { p.head_dim = bad; });
    expect_invalid("head_dim_v", text.c_str(), [=](auto& p) { p.head_dim_v = bad; });
  }
  expect_invalid("num_heads is 9", "7", [](auto& p) {
    p.num_heads = 9;
    p.num_heads_kv = 7;
  });
  expect_invalid("seqlen_q", "4294967296", [](auto& p) { p.seqlen_q = int64_t{1} << 32; });
}

TEST(Validate, FieldsOfTheOtherKindMustBeZero) {
  expect_invalid("total_q", "5", [](auto& p) { p.total_q = 5; });
  expect_invalid("total_k", "5", [](auto& p) { p.total_k = 5; });
  expect_invalid("max_seqlen_q", "5", [](auto& p) { p.max_seqlen_q = 5; });
  expect_invalid("max_seqlen_k", "5", [](auto& p) { p.max_seqlen_k = 5; });
  expect_invalid_varlen("seqlen_q", "5", [](auto& p) { p.seqlen_q = 5; });
  expect_invalid_varlen("seqlen_k", "5", [](auto& p) { p.seqlen_k = 5; });
}

TEST(Validate, VarlenTotals_I8) {
  expect_invalid_varlen("total_q", "-1", [](auto& p) { p.total_q = -1; });
  expect_invalid_varlen("max_seqlen_q", "10", [](auto& p) { p.max_seqlen_q = 10; });
  expect_invalid_varlen("max_seqlen_k", "-2", [](auto& p) { p.max_seqlen_k = -2; });
  expect_invalid_varlen("total_q is 9", "2", [](auto& p) { p.max_seqlen_q = 2; });
  expect_invalid_varlen("total_k is 12", "3", [](auto& p) { p.max_seqlen_k = 3; });
  expect_invalid_varlen("total_q is 9", "0", [](auto& p) { p.batch = 0; });
}

TEST(Validate, Scores_I10_B101) {
  for (const int32_t bad : {-2, -3, std::numeric_limits<int32_t>::min()}) {
    const std::string text = to_text(int64_t{bad});
    expect_invalid("window_left", text.c_str(), [=](auto& p) { p.mask.window_left = bad; });
    expect_invalid("window_right", text.c_str(), [=](auto& p) { p.mask.window_right = bad; });
  }
  expect_invalid("align", "2", [](auto& p) { p.mask.align = static_cast<Corner>(2); });
  for (const float bad : {HUGE_VALF, -HUGE_VALF, std::numeric_limits<float>::quiet_NaN()}) {
    const std::string text = to_text(bad);
    expect_invalid("softmax_scale", text.c_str(), [=](auto& p) {
      p.has_softmax_scale = true;
      p.softmax_scale = bad;
    });
    expect_invalid("softcap", text.c_str(), [=](auto& p) { p.softcap = bad; });
  }
  expect_invalid("softcap", "-0.5", [](auto& p) { p.softcap = -0.5f; });
}

TEST(Validate, UnknownEnumValues_I6) {
  expect_invalid("dtype", "4", [](auto& p) { p.dtype = static_cast<DType>(4); });
  expect_invalid("dtype", "-1", [](auto& p) { p.dtype = static_cast<DType>(-1); });
  expect_invalid("direction", "2", [](auto& p) { p.direction = static_cast<Direction>(2); });
}

TEST(Validate, NegativeStrides_I2) {
  for (int t = 0; t < kNumTensors; ++t) {
    const TensorId id = static_cast<TensorId>(t);
    expect_invalid(name_of(id), "-8", [=](auto& p) { p.stride(id).batch = -8; });
    expect_invalid(name_of(id), "-8", [=](auto& p) { p.stride(id).seqlen = -8; });
    expect_invalid(name_of(id), "-8", [=](auto& p) { p.stride(id).head = -8; });
  }
}

TEST(Validate, OutputsMayNotOverlapThemselves_I2_B107) {
  for (const TensorId id : {TensorId::kDq, TensorId::kDk, TensorId::kDv}) {
    expect_invalid(name_of(id), "0", [=](auto& p) { p.stride(id).batch = 0; });
    expect_invalid(name_of(id), "0", [=](auto& p) { p.stride(id).seqlen = 0; });
    expect_invalid(name_of(id), "0", [=](auto& p) { p.stride(id).head = 0; });
    expect_invalid(name_of(id), "5", [=](auto& p) { p.stride(id).head = 5; });  // dim is 6 or 8
  }
  // Inputs may repeat themselves, do included.
  for (const TensorId id :
       {TensorId::kQ, TensorId::kK, TensorId::kV, TensorId::kO, TensorId::kDo}) {
    AttentionProblem p = dense();
    p.stride(id) = {0, 0, 0};
    EXPECT_TRUE(validate(p).ok()) << name_of(id) << ": " << validate(p).message();
  }
  AttentionProblem forward = dense();
  forward.direction = Direction::kForward;
  forward.stride(TensorId::kO).seqlen = 0;
  EXPECT_FALSE(validate(forward).ok());
}

TEST(Validate, StridesOfExtentOneAreFree) {
  AttentionProblem p = *parse_problem("fp32 b1 sq1 h1 d8");
  p.stride(TensorId::kO) = {0, 0, 0};
  EXPECT_TRUE(validate(p).ok()) << validate(p).message();
}

TEST(Validate, Overflow_I3_B091) {
  const int64_t huge = int64_t{1} << 61;
  for (const TensorId id : {TensorId::kQ, TensorId::kK, TensorId::kV, TensorId::kDo}) {
    expect_refused(name_of(id), "2305843009213693952", StatusCode::kOverflow,
                   [=](auto& p) { p.stride(id).batch = huge; });
    expect_refused(name_of(id), "2305843009213693952", StatusCode::kOverflow,
                   [=](auto& p) { p.stride(id).seqlen = huge; });
    expect_refused(name_of(id), "2305843009213693952", StatusCode::kOverflow,
                   [=](auto& p) { p.stride(id).head = huge; });
  }
  // Sizes alone: about 2^31 * 2^31 * 2^20 * 2^16.
  const Result<AttentionProblem> p = parse_problem("fp64 b2147483647 sq2147483647 h1048576 d65536");
  ASSERT_FALSE(p.ok());
  EXPECT_EQ(p.status().code(), StatusCode::kOverflow) << p.status().message();
}

TEST(Validate, EmptyShapesAreFine_E2_B053) {
  for (const char* line : {"fp32 b0 sq5 h1 d8", "fp32 b1 sq0 sk5 h1 d8", "fp32 b1 sq5 sk0 h1 d8",
                           "fp32 b0 sq0 sk0 h1 d8 backward", "fp32 varlen:q=:k= h1 d8",
                           "fp32 varlen:q=0,0:k=0,0 h1 d8 backward"}) {
    const Result<ProblemCase> c = parse_case(line);
    EXPECT_TRUE(c.ok()) << line << ": " << c.status().message();
  }
}

// Every field takes part in equality and in the hash.
TEST(ProblemHash, EachFieldChangesIt) {
  const Edit edits[] = {
      [](auto& p) { p.direction = Direction::kForward; },
      [](auto& p) { p.deterministic = true; },
      [](auto& p) { p.dtype = DType::kBf16; },
      [](auto& p) { ++p.batch; },
      [](auto& p) { ++p.seqlen_q; },
      [](auto& p) { ++p.seqlen_k; },
      [](auto& p) { ++p.num_heads; },
      [](auto& p) { ++p.num_heads_kv; },
      [](auto& p) { ++p.head_dim; },
      [](auto& p) { ++p.head_dim_v; },
      [](auto& p) { p.mask.window_left = 3; },
      [](auto& p) { p.mask.window_right = 3; },
      [](auto& p) { p.mask.align = Corner::kTopLeft; },
      [](auto& p) { p.has_softmax_scale = true; },
      [](auto& p) { p.softmax_scale = 2.0f; },
      [](auto& p) { p.softcap = 2.0f; },
      [](auto& p) { p.alibi = true; },
      [](auto& p) { p.varlen = true; },
      [](auto& p) { ++p.total_q; },
      [](auto& p) { ++p.total_k; },
      [](auto& p) { ++p.max_seqlen_q; },
      [](auto& p) { ++p.max_seqlen_k; },
      [](auto& p) { ++p.strides[0].batch; },
      [](auto& p) { ++p.strides[3].seqlen; },
      [](auto& p) { ++p.strides[7].head; },
  };
  std::set<uint64_t> seen = {hash_of(dense())};
  for (const Edit& edit : edits) {
    AttentionProblem p = dense();
    edit(p);
    EXPECT_FALSE(p == dense());
    EXPECT_TRUE(seen.insert(hash_of(p)).second) << print(p);
  }
}

TEST(ProblemHash, EqualProblemsAgreeAndOthersDoNotCollide) {
  AttentionProblem zero = dense(), minus_zero = dense();
  minus_zero.softcap = -0.0f;
  ASSERT_TRUE(zero == minus_zero);
  EXPECT_EQ(hash_of(zero), hash_of(minus_zero));
  std::unordered_set<uint64_t> hashes;
  std::set<std::string> lines;
  for (uint64_t seed = 0; seed < 50000; ++seed) {
    const AttentionProblem p = random_problem(seed).problem;
    EXPECT_EQ(hash_of(p), hash_of(AttentionProblem(p)));
    hashes.insert(hash_of(p));
    lines.insert(print(p));
  }
  EXPECT_EQ(hashes.size(), lines.size());
}

TEST(ProblemSizes, FlopsCountVisiblePairs) {
  EXPECT_EQ(parse_problem("fp32 b2 sq5 sk7 h3 d8 dv4")->flops(), 2.0 * 3 * 5 * 7 * 2 * (8 + 4));
  EXPECT_EQ(parse_problem("fp32 b1 sq4 h1 d8 causal")->flops(), 10.0 * 4 * 8);
  EXPECT_EQ(parse_problem("fp32 b1 sq4 h1 d8 causal backward")->flops(), 10.0 * 10 * 8);
  EXPECT_EQ(parse_problem("fp32 b1 sq4 sk9 h1 d8 causal topleft")->flops(), 10.0 * 4 * 8);
}

TEST(ProblemSizes, LseRows_B140) {
  // One long and many short sequences: lse is total tokens times heads, not batch times longest.
  AttentionProblem p =
      *parse_problem("fp16 varlen:b=4097:total=69632,69632:max=65536,65536 h32 d8");
  EXPECT_EQ(p.num_rows() * 4, 8912896);
}

}  // namespace
}  // namespace tilewise
