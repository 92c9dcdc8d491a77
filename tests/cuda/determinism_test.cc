// The forward's bits do not change: on reruns, beside another stream's kernels, with little memory
// left. TILEWISE_RERUNS sets the number of reruns (1,000 when unset).
#include <algorithm>
#include <cstdlib>

#include "tests/cuda/device_case.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

int reruns() {
  const char* text = std::getenv("TILEWISE_RERUNS");
  return text != nullptr && *text != '\0' ? std::atoi(text) : 1000;
}

class Determinism : public DeviceTest {};

TEST_F(Determinism, RerunsUnderPressureAreBitEqual_D1_T5_B061) {
  size_t free = 0, total = 0;
  require(cudaMemGetInfo(&free, &total));
  const DeviceArray<std::byte> held(free / 10 * 9);
  const Stream stream, busy;
  const DeviceCase neighbour("bf16 b8 sq500 h8 d128 causal", busy.get());
  for (const char* line :
       {"bf16 b60 sq130 sk129 h2 hk1 d64 causal", "fp16 b60 sq64 sk200 h2 d128",
        "bf16 b2 sq3 sk3000 h8 hk2 d128 causal", "fp16 b60 sq33 sk65 h1 d80 softcap:10 alibi",
        "bf16 b60 sq70 sk90 h1 d256 window:30,5", "fp16 b60 sq70 sk90 h1 d96 data:nonfinite"}) {
    const ProblemCase c = case_of(line);
    DeviceCase mine(c, stream.get());
    const Bits want = mine.run();
    int different = 0;
    for (int i = 0; i < reruns(); ++i) {
      ASSERT_EQ(neighbour.launch(), TILEWISE_OK) << tilewise_last_error();
      different += mine.run() != want;
    }
    EXPECT_EQ(different, 0) << line;
  }
}

}  // namespace
}  // namespace tilewise::cuda::test
