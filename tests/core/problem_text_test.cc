// The one-line text form: what it says, that it survives a round trip, and that errors quote it.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/problem.h"
#include "random_problem.h"

namespace tilewise {
namespace {

ProblemCase parsed(std::string_view line) {
  Result<ProblemCase> c = parse_case(line);
  EXPECT_TRUE(c.ok()) << line << ": " << c.status().message();
  return c ? *c : ProblemCase{};
}

TEST(ProblemText, ParseOfPrintIsTheCase) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    const ProblemCase c = random_problem(seed);
    const Status valid = validate(c.problem);
    ASSERT_TRUE(valid.ok()) << seed << ": " << print(c) << ": " << valid.message();
    const Result<ProblemCase> back = parse_case(print(c));
    ASSERT_TRUE(back.ok()) << print(c) << ": " << back.status().message();
    ASSERT_TRUE(*back == c) << print(c) << " came back as " << print(*back);
  }
}

TEST(ProblemText, ParseOfPrintIsTheProblem) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    const AttentionProblem p = random_problem(seed).problem;
    const Result<AttentionProblem> back = parse_problem(print(p));
    ASSERT_TRUE(back.ok()) << print(p) << ": " << back.status().message();
    ASSERT_TRUE(*back == p) << print(p) << " came back as " << print(*back);
  }
}

TEST(ProblemText, ReadsEveryWord) {
  const ProblemCase c = parsed(
      "fp16 b2 sq5 sk7 h8 hk4 d64 dv32 causal window:3,0 topleft scale:-0.25 softcap:30 alibi "
      "stride:k=4096,512,128 offset:q=3 data:needle seed:18446744073709551615 backward "
      "deterministic");
  const AttentionProblem& p = c.problem;
  EXPECT_EQ(p.dtype, DType::kFp16);
  EXPECT_EQ(p.batch, 2);
  EXPECT_EQ(p.seqlen_q, 5);
  EXPECT_EQ(p.seqlen_k, 7);
  EXPECT_EQ(p.num_heads, 8);
  EXPECT_EQ(p.num_heads_kv, 4);
  EXPECT_EQ(p.head_dim, 64);
  EXPECT_EQ(p.head_dim_v, 32);
  EXPECT_EQ(p.mask, (MaskSpec{3, 0, Corner::kTopLeft}));
  EXPECT_TRUE(p.has_softmax_scale);
  EXPECT_EQ(p.softmax_scale, -0.25f);
  EXPECT_EQ(p.softcap, 30.0f);
  EXPECT_TRUE(p.alibi);
  EXPECT_EQ(p.stride(TensorId::kK), (Strides{4096, 512, 128}));
  EXPECT_EQ(p.stride(TensorId::kQ), (Strides{5 * 8 * 64, 8 * 64, 64}));
  EXPECT_TRUE(p.backward());
  EXPECT_TRUE(p.deterministic);
  EXPECT_EQ(c.offsets[static_cast<int>(TensorId::kQ)], 3);
  EXPECT_EQ(c.data, "needle");
  EXPECT_EQ(c.seed, UINT64_MAX);
}

TEST(ProblemText, FillsDefaults) {
  const AttentionProblem p = parsed("fp32 b1 sq9 h2 d8").problem;
  EXPECT_EQ(p.seqlen_k, 9);
  EXPECT_EQ(p.num_heads_kv, 2);
  EXPECT_EQ(p.head_dim_v, 8);
  EXPECT_TRUE(p.mask.is_full());
  EXPECT_EQ(p.mask.align, Corner::kBottomRight);
  EXPECT_FALSE(p.has_softmax_scale);
  EXPECT_EQ(p.scale(), static_cast<double>(0.35355339f));
  EXPECT_EQ(p.direction, Direction::kForward);
  EXPECT_EQ(parsed("fp64 b2 sq5 h2 d8").problem.scale(),
            1.0 / std::sqrt(8.0));  // not rounded to float
}

TEST(ProblemText, OrderOfWordsSpacesAndCommentsDoNotMatter) {
  const ProblemCase want = parsed("bf16 b2 sq5 h4 hk2 d16 causal backward");
  EXPECT_EQ(parsed("bf16 backward causal d16 hk2 h4 sq5 b2"), want);
  EXPECT_EQ(parsed("  bf16\tb2  sq5 h4 hk2 d16 causal backward  # a remark: b3 d7\n"), want);
}

TEST(ProblemText, PrintsInOrderWithoutDefaults) {
  EXPECT_EQ(print(parsed("bf16 causal d128 b2 hk4 sk4096 h16 sq4096 dv128")),
            "bf16 b2 sq4096 h16 hk4 d128 causal");
  EXPECT_EQ(print(parsed("fp32 seed:0 data:normal backward b1 sq1 sk2 h1 d4 window:-1,-1")),
            "fp32 b1 sq1 sk2 h1 d4 backward");
  EXPECT_EQ(print(parsed("fp32 b1 sq3 h2 d4 layout:bhsd").problem),
            "fp32 b1 sq3 h2 d4 layout:bhsd");
}

TEST(ProblemText, VarlenForms_B103) {
  const ProblemCase c = parsed("bf16 varlen:q=1,0,1:k=3,0,5 h9 hk3 d64 causal");
  EXPECT_EQ(c.lengths_q, (std::vector<int32_t>{1, 0, 1}));
  EXPECT_EQ(c.lengths_k, (std::vector<int32_t>{3, 0, 5}));
  EXPECT_EQ(c.problem.batch, 3);
  EXPECT_EQ(c.problem.total_q, 2);
  EXPECT_EQ(c.problem.total_k, 8);
  EXPECT_EQ(c.problem.max_seqlen_q, 1);
  EXPECT_EQ(c.problem.max_seqlen_k, 5);
  EXPECT_EQ(c.problem.seqlen_q, 0);
  EXPECT_EQ(c.problem.stride(TensorId::kQ), (Strides{0, 9 * 64, 64}));
  EXPECT_EQ(print(c.problem), "bf16 h9 hk3 d64 varlen:b=3:total=2,8:max=1,5 causal");
  const ProblemCase none = parsed("fp32 varlen:q=:k= h1 d4");
  EXPECT_EQ(none.problem.batch, 0);
  EXPECT_EQ(parsed(print(none)), none);
}

TEST(ProblemText, LayoutsAreStrides_B135) {
  const AttentionProblem bhsd = parsed("fp32 b2 sq5 sk6 h4 hk2 d8 dv3 layout:bhsd").problem;
  EXPECT_EQ(bhsd.stride(TensorId::kQ), (Strides{4 * 5 * 8, 8, 5 * 8}));
  EXPECT_EQ(bhsd.stride(TensorId::kV), (Strides{2 * 6 * 3, 3, 6 * 3}));
  const AttentionProblem qkv = parsed("fp32 b2 sq5 h4 hk2 d8 dv3 layout:qkv").problem;
  const int64_t token = 4 * 8 + 2 * 8 + 2 * 3;
  EXPECT_EQ(qkv.stride(TensorId::kQ), (Strides{5 * token, token, 8}));
  EXPECT_EQ(qkv.stride(TensorId::kDv), (Strides{5 * token, token, 3}));
  EXPECT_EQ(qkv.stride(TensorId::kO), (Strides{5 * 4 * 3, 4 * 3, 3}));
}

struct BadLine {
  const char* line;
  const char* quoted;  // must stand in the message
};
const BadLine kBadLines[] = {
    {"", "empty"},
    {"   # only a remark", "empty"},
    {"b2 sq4 h1 d4", "\"b2\""},
    {"fp8 b2 sq4 h1 d4", "\"fp8\""},
    {"FP32 b2 sq4 h1 d4", "\"FP32\""},
    {"fp32 b2 sq4 h1 d4 fp32", "\"fp32\""},
    {"fp32 b2 sq4 h1 d4 casual", "\"casual\""},
    {"fp32 b2 sq4 h1 d4 causal:1", "\"causal:1\""},
    {"fp32 b2 sq4 h1 d4 b2", "\"b2\""},
    {"fp32 b2 b3 sq4 h1 d4", "\"b3\""},
    {"fp32 b2 sq4 h1 d4 causal causal", "\"causal\""},
    {"fp32 b2 sq4 h1 d4 backward backward", "\"backward\""},
    {"fp32 b2 sq4 h1 d4 scale:1 scale:1", "\"scale:1\""},
    {"fp32 b2 sq4 h1 d4 window:1,1 window:2,2", "\"window:2,2\""},
    {"fp32 b2 sq4 h1 d4 stride:q=1,1,1 stride:q=2,2,2", "\"stride:q=2,2,2\""},
    {"fp32 b2 sq4 h1 d4 offset:q=1 offset:q=2", "\"offset:q=2\""},
    {"fp32 b2 sq4 h1 d4 seed:1 seed:2", "\"seed:2\""},
    {"fp32 b2 sq4 h1 d4 layout:bhsd layout:bhsd", "\"layout:bhsd\""},
    {"fp32 b2 sq4 h1 d", "\"d\""},
    {"fp32 b2 sq4 h1 d4x", "\"d4x\""},
    {"fp32 b2 sq4 h1 d0x10", "\"d0x10\""},
    {"fp32 b2 sq4 h1 d4.5", "\"d4.5\""},
    {"fp32 b2 sq+4 h1 d4", "\"sq+4\""},
    {"fp32 b9223372036854775808 sq4 h1 d4", "\"b9223372036854775808\""},
    {"fp32 b2 sq4 h1 d4 window:1", "\"window:1\""},
    {"fp32 b2 sq4 h1 d4 window:1,2,3", "\"window:1,2,3\""},
    {"fp32 b2 sq4 h1 d4 window:a,b", "\"window:a,b\""},
    {"fp32 b2 sq4 h1 d4 window:2147483648,0", "\"window:2147483648,0\""},
    {"fp32 b2 sq4 h1 d4 scale:", "\"scale:\""},
    {"fp32 b2 sq4 h1 d4 scale:1e999", "\"scale:1e999\""},
    {"fp32 b2 sq4 h1 d4 softcap:x", "\"softcap:x\""},
    {"fp32 b2 sq4 h1 d4 layout:sbhd", "\"layout:sbhd\""},
    {"fp32 b2 sq4 h1 d4 stride:lse=1,2,3", "\"stride:lse=1,2,3\""},
    {"fp32 b2 sq4 h1 d4 stride:q=1,2", "\"stride:q=1,2\""},
    {"fp32 b2 sq4 h1 d4 stride:q", "\"stride:q\""},
    {"fp32 b2 sq4 h1 d4 offset:q=-1", "\"offset:q=-1\""},
    {"fp32 b2 sq4 h1 d4 seed:-1", "\"seed:-1\""},
    {"fp32 b2 sq4 h1 d4 seed:18446744073709551616", "\"seed:18446744073709551616\""},
    {"fp32 b2 sq4 h1 d4 data:", "\"data:\""},
    {"fp32 b2 sq4 h1 d4 dropout:0.1", "\"dropout:0.1\""},
    {"fp32 varlen:q=1,2:k=1 h1 d4", "\"varlen:q=1,2:k=1\""},
    {"fp32 varlen:q=1,-2:k=1,1 h1 d4", "\"varlen:q=1,-2:k=1,1\""},
    {"fp32 varlen:q=1 h1 d4", "\"varlen:q=1\""},
    {"fp32 varlen:b=1:total=4 h1 d4", "\"varlen:b=1:total=4\""},
    {"fp32 varlen:q=1:k=1 varlen:q=1:k=1 h1 d4", "\"varlen:q=1:k=1\""},
    {"fp32 varlen:q=1:k=1 b1 h1 d4", "\"b\""},
    {"fp32 varlen:q=1:k=1 sq1 h1 d4", "\"sq\""},
    {"fp32 varlen:q=1:k=1 sk1 h1 d4", "\"sk\""},
    {"fp32 sq4 h1 d4", "no b<n>"},
    {"fp32 b2 h1 d4", "no sq<n>"},
    {"fp32 b2 sq4 d4", "no h<n>"},
    {"fp32 b2 sq4 h1", "no d<n>"},
    {"fp32 b2 sq4 h1 d4 causal window:1,2", "window_right 2"},
    {"fp32 b-2 sq4 h1 d4", "-2"},
    {"fp32 b2 sq4 h3 hk2 d4", "num_heads is 3"},
    {"fp32 b2 sq4 h1 d4 scale:nan", "softmax_scale is nan"},
    {"fp32 b2 sq4 h1 d4 scale:inf", "softmax_scale is inf"},
    {"fp32 b2 sq4 h1 d4 softcap:-1", "softcap is -1"},
    {"fp32 b2 sq4 h1 d4 window:-2,0", "window_left is -2"},
};

TEST(ProblemText, EveryErrorQuotesWhatIsWrong) {
  for (const BadLine& bad : kBadLines) {
    const Result<ProblemCase> c = parse_case(bad.line);
    ASSERT_FALSE(c.ok()) << bad.line;
    EXPECT_EQ(c.status().code(), StatusCode::kInvalidArgument) << bad.line;
    EXPECT_NE(c.status().message().find(bad.quoted), std::string::npos)
        << bad.line << ": " << c.status().message();
  }
}

TEST(ProblemText, AProblemHasNoWordsOfACase) {
  for (const char* word : {"offset:q=1", "data:needle", "seed:3"}) {
    const Result<AttentionProblem> p = parse_problem(std::string("fp32 b1 sq1 h1 d4 ") + word);
    ASSERT_FALSE(p.ok()) << word;
    EXPECT_NE(p.status().message().find(word), std::string::npos) << p.status().message();
  }
}

TEST(ProblemText, AnyBytesGiveAProblemOrAnErrorNeverACrash) {
  const std::string letters = "fp32 b1sq4hkdv:=,-#.causwindotplyrenxgm\t0\xff";
  int good = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Dice dice(seed);
    std::string line = dice.one_in(2) ? print(random_problem(seed)) : "fp32 b1 sq4 h1 d4 ";
    for (int64_t edits = 1 + dice.below(4); edits > 0; --edits) {
      const size_t at = static_cast<size_t>(dice.below(static_cast<int64_t>(line.size()) + 1));
      const char letter =
          letters[static_cast<size_t>(dice.below(static_cast<int64_t>(letters.size())))];
      if (dice.one_in(3) && at < line.size()) {
        line.erase(at, 1);
      } else {
        line.insert(at, 1, letter);
      }
    }
    const Result<ProblemCase> c = parse_case(line);
    if (!c) {
      ASSERT_FALSE(c.status().message().empty()) << line;
      continue;
    }
    ++good;
    const Result<ProblemCase> back = parse_case(print(*c));
    ASSERT_TRUE(back.ok()) << line << " -> " << print(*c) << ": " << back.status().message();
    ASSERT_TRUE(*back == *c) << line << " -> " << print(*c);
  }
  EXPECT_GT(good, 300);
}

}  // namespace
}  // namespace tilewise
