// Run, check and bench through the C ABI.
#include "harness/run.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "harness/bench.h"
#include "harness/check.h"
#include "harness/peak.h"
#include "harness/problem_abi.h"
#include "support.h"

namespace tilewise::harness {
namespace {

TEST(ProblemAbi, ThereAndBack) {
  for (const char* line :
       {"fp16 b2 sq3 sk4 h6 hk2 d8 dv5 causal topleft scale:-2 softcap:3 alibi backward "
        "deterministic",
        "bf16 varlen:q=1,2:k=3,0 h2 d4 window:2,-1 layout:bhsd stride:k=0,99,7"}) {
    const AttentionProblem p = case_of(line).problem;
    EXPECT_TRUE(from_abi(to_abi(p)) == p) << line;
  }
  tilewise_problem contiguous = to_abi(case_of("fp32 b2 sq3 h2 d4").problem);
  contiguous.k = {0, 0, 0, 0};
  EXPECT_TRUE(from_abi(contiguous) == case_of("fp32 b2 sq3 h2 d4").problem);
}

TEST(ProblemAbi, FlopsOfVarlenAreThoseOfItsSequences) {
  EXPECT_EQ(flops_of(case_of("fp32 varlen:q=3,4:k=5,6 h2 d8 causal")),
            flops_of(case_of("fp32 b1 sq3 sk5 h2 d8 causal")) +
                flops_of(case_of("fp32 b1 sq4 sk6 h2 d8 causal")));
}

TEST(Check, GoodCasesPassAndSayHow) {
  const CheckReport r = check_case(case_of("bf16 b1 sq70 h4 hk2 d16 causal backward"));
  EXPECT_TRUE(r.ok) << r.summary();
  EXPECT_NE(r.outcome.kernel.find("cpu."), std::string::npos);
  EXPECT_NE(r.summary().find("A6 dk"), std::string::npos);
}

TEST(Check, ARefusedCallIsAFailureWithItsText) {
  CheckOptions options;
  options.run.kernel = "cpu.nonsense";
  const CheckReport r = check_case(case_of("fp32 b1 sq2 h1 d4"), options);
  EXPECT_FALSE(r.ok);
  EXPECT_EQ(r.outcome.stage, "plan");
  EXPECT_NE(r.text[0].find("cpu.nonsense"), std::string::npos) << r.text[0];
}

TEST(Check, AFaultyRunIsCaught) {
  Tensors t = filled("fp32 b1 sq20 h1 d8");
  const RunOutcome good = run_case(t);
  ASSERT_TRUE(good.ok()) << good.error;
  RunOptions misuse;
  misuse.edit_problem = [](tilewise_problem& p) { p.causal = 1; };  // computes something else
  CheckOptions options;
  options.run = misuse;
  const CheckReport r = check_tensors(t, options);
  EXPECT_FALSE(r.ok);
  EXPECT_EQ(r.text[0].substr(0, 4), "FAIL");
}

TEST(Run, WithoutLseNothingIsWrittenThere) {
  Tensors t = filled("fp32 b1 sq20 h1 d8");
  RunOptions options;
  options.want_lse = false;
  ASSERT_TRUE(run_case(t, options).ok());
  EXPECT_TRUE(std::isnan(t.lse()[0]));
}

TEST(Run, PreparedRunsRepeat) {
  Tensors t = filled("fp32 b1 sq20 h1 d8");
  PreparedRun run(t, Direction::kForward, {});
  ASSERT_TRUE(run.ok());
  ASSERT_EQ(run.run(), TILEWISE_OK);
  const auto first = t.packed(TensorId::kO);
  t.poison_outputs(Direction::kForward);
  ASSERT_EQ(run.run(), TILEWISE_OK);
  EXPECT_EQ(first, t.packed(TensorId::kO));
}

TEST(CaseFile, ErrorsNameTheLine) {
  const std::string path = testing::TempDir() + "/tilewise_cases.txt";
  std::ofstream(path) << "# a comment\n\nfp32 b1 sq2 h1 d4  # one\nfp32 b1 sq2 h1 d4 nonsense\n";
  const auto r = parse_case_file(path);
  ASSERT_FALSE(r.ok());
  EXPECT_NE(r.status().message().find(":4: "), std::string::npos);
  EXPECT_NE(r.status().message().find("nonsense"), std::string::npos);
  std::ofstream(path) << "# a comment\n\nfp32 b1 sq2 h1 d4  # one\n";
  ASSERT_EQ(parse_case_file(path)->size(), 1u);
  EXPECT_FALSE(parse_case_file(path + ".missing").ok());
}

TEST(Bench, ReportsASaneShareOfThePeak) {
  BenchOptions options;
  options.min_seconds = 0.02;
  options.rounds = 3;
  const auto r = bench_case(case_of("fp32 b1 sq128 h2 d64"), options);
  ASSERT_TRUE(r.ok()) << r.status().message();
  EXPECT_EQ(r->direction, "forward");
  EXPECT_GT(r->ms, 0);
  EXPECT_GT(r->peak_fraction, 0);
  EXPECT_LT(r->peak_fraction, 1.2);
  EXPECT_EQ(r->gbytes_per_s, 0);
  const std::string json = to_json(*r);
  for (const char* key :
       {"problem", "direction", "kernel", "device", "threads", "ms", "gflops", "peak_gflops",
        "peak_instruction", "peak_fraction", "peak_fraction_quiet"}) {
    EXPECT_NE(json.find("\"" + std::string(key) + "\": "), std::string::npos) << json;
  }
}

TEST(Bench, DecodeIsMeasuredInBytes) {
  BenchOptions options;
  options.min_seconds = 0.02;
  options.rounds = 3;
  const auto r = bench_case(case_of("bf16 b1 sq1 sk8192 h8 hk2 d64"), options);
  ASSERT_TRUE(r.ok()) << r.status().message();
  EXPECT_GT(r->gbytes_per_s, 0);
  EXPECT_EQ(r->peak_instruction, "read");
  EXPECT_NEAR(r->peak_fraction, r->gbytes_per_s / r->read_gbytes_per_s, 0.5 * r->peak_fraction);
  EXPECT_NE(to_json(*r).find("\"peak_instruction\": \"read\""), std::string::npos);
}

TEST(Peak, InstructionFollowsTheKernel) {
  EXPECT_EQ(instruction_of("cpu.forward.avx512bf16", "bf16"), PeakInstruction::kVdpbf16ps);
  EXPECT_EQ(instruction_of("cpu.forward.avx512bf16", "fp16"), PeakInstruction::kFmaFp32Avx512);
  EXPECT_EQ(instruction_of("cpu.backward.avx2", "bf16"), PeakInstruction::kFmaFp32Avx2);
  EXPECT_EQ(instruction_of("cpu.decode.scalar", "fp32"), PeakInstruction::kFmaFp32Scalar);
  EXPECT_TRUE(can_run(instruction_of("cpu.reference", "fp32")));
  EXPECT_GT(peak_gflops(PeakInstruction::kFmaFp32Scalar, 2, 0.001), 0.1);
}

}  // namespace
}  // namespace tilewise::harness
