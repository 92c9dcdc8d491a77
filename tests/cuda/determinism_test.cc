// Bits do not change: on reruns, beside another stream's kernels, with little memory left, whatever
// the workspace holds. TILEWISE_RERUNS sets the number of reruns (1,000 when unset; a backward has
// a fifth of them).
#include <cstdlib>
#include <initializer_list>

#include "tests/cuda/device_case.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

int reruns() {
  const char* text = std::getenv("TILEWISE_RERUNS");
  return text != nullptr && *text != '\0' ? std::atoi(text) : 1000;
}

class Determinism : public DeviceTest {};

// Runs each line `times` times beside a neighbour in another stream.
void expect_same_bits(const char* neighbours_line, std::initializer_list<const char*> lines,
                      int times) {
  size_t free = 0, total = 0;
  require(cudaMemGetInfo(&free, &total));
  const DeviceArray<std::byte> held(free / 10 * 9);
  const Stream stream, busy;
  const DeviceCase neighbour(neighbours_line, busy.get());
  for (const char* line : lines) {
    DeviceCase mine(line, stream.get());
    const Bits want = mine.run();
    int different = 0;
    for (int i = 0; i < times; ++i) {
      ASSERT_EQ(neighbour.launch(), TILEWISE_OK) << tilewise_last_error();
      different += mine.run() != want;
    }
    EXPECT_EQ(different, 0) << line;
  }
}

TEST_F(Determinism, RerunsUnderPressureAreBitEqual_D1_T5_B061) {
  expect_same_bits(
      "bf16 b8 sq500 h8 d128 causal",
      {"bf16 b60 sq130 sk129 h2 hk1 d64 causal", "fp16 b60 sq64 sk200 h2 d128",
       "bf16 b2 sq3 sk3000 h8 hk2 d128 causal", "fp16 b60 sq33 sk65 h1 d80 softcap:10 alibi",
       "bf16 b60 sq70 sk90 h1 d256 window:30,5", "fp16 b60 sq70 sk90 h1 d96 data:nonfinite"},
      reruns());
}

// dk and dv; dq with the flag.
TEST_F(Determinism, BackwardRerunsUnderPressureAreBitEqual_D1_T5_B061) {
  expect_same_bits("bf16 b2 sq500 h8 d128 causal backward",
                   {"bf16 b4 sq300 sk290 h2 hk1 d64 causal backward",
                    "fp16 b4 sq200 sk300 h2 d128 backward deterministic",
                    "bf16 b2 sq333 h2 hk1 d64 causal backward deterministic",
                    "fp16 b6 sq70 sk190 h1 d80 softcap:10 alibi backward deterministic",
                    "bf16 b2 sq190 sk250 h1 d256 window:90,5 backward deterministic"},
                   (reruns() + 4) / 5);
}

// Zeros, NaN, large numbers, and what another call has left there.
TEST_F(Determinism, WhatTheWorkspaceHoldsDoesNotMatter_B030) {
  for (const char* line :
       {"bf16 b1 sq1 sk5000 h8 hk1 d128", "bf16 b2 sq300 sk290 h4 hk2 d64 causal backward",
        "fp16 b2 sq130 sk300 h2 d128 backward deterministic",
        "bf16 b2 sq200 sk90 h2 d72 causal backward deterministic",  // rows without keys
        "fp16 varlen:q=3,70,0,200:k=90,70,5,333 h4 hk2 d64 causal backward deterministic",
        "bf16 varlen:q=64,65,63,0,128:k=64,1,63,9,127 h2 d33 backward deterministic"}) {
    DeviceCase c(line);
    ASSERT_GT(info_of(c.plan()).workspace_bytes, 0u) << line;
    void* const workspace = c.params.workspace;
    const size_t bytes = c.params.workspace_bytes;
    const Bits want = c.run();
    for (const int content : {0xff, 0x00, 0x7f, -1}) {
      c.refill(case_of(line));
      if (content < 0) {
        ASSERT_EQ(c.launch(), TILEWISE_OK) << tilewise_last_error();
      } else {
        require(cudaMemset(workspace, content, bytes));
      }
      EXPECT_TRUE(c.run() == want) << line << " content " << content;
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda::test
