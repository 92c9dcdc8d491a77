// What the tests of the sm_90 kernels share.
#pragma once

#include "tests/cuda/support.h"

namespace tilewise::cuda::test {

// Skips every test of the class but on sm_90.
class HopperTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0));
    if (properties.major != 9) GTEST_SKIP() << "needs sm_90, not sm_" << properties.major << "x";
  }
};

}  // namespace tilewise::cuda::test
