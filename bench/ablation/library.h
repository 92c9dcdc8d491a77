// The library's own sm_80 forward, through the C ABI.
#pragma once

#include <memory>

#include "bench/ablation/problem.h"
#include "tilewise/tilewise.h"

namespace tilewise::ablation {

class LibraryForward {
 public:
  explicit LibraryForward(const Problem& problem);
  void run(const Tensors& tensors) const;

 private:
  struct Destroy {
    void operator()(tilewise_plan* plan) const { tilewise_plan_destroy(plan); }
  };
  std::unique_ptr<tilewise_plan, Destroy> plan_;
  std::unique_ptr<DeviceArray<char>> workspace_;
};

}  // namespace tilewise::ablation
