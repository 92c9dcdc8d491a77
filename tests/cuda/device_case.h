// A case in a device's memory, through the C ABI: the call of its direction.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/problem.h"
#include "harness/buffers.h"
#include "harness/device_mirror.h"
#include "tilewise/tilewise.h"

namespace tilewise::cuda::test {

using SharedPlan = std::shared_ptr<tilewise_plan>;

ProblemCase case_of(const std::string& line);  // throws when the line does not parse

// Throws what the library says when it makes none.
// kernel: forces one by name.
SharedPlan make_plan(const AttentionProblem& problem, int32_t device = 0,
                     const char* kernel = nullptr);
tilewise_plan_info info_of(const SharedPlan& plan);

// The tensors that a call of the problem writes with the same bits whenever it runs: o; dk, dv and,
// if deterministic, dq.
std::vector<TensorId> reproducible(const AttentionProblem& problem);

// Those tensors, one after the other and without gaps; the lse of a forward.
struct Bits {
  std::vector<std::byte> elements;
  std::vector<float> lse;
  bool operator==(const Bits& other) const;  // bit for bit: NaN equals itself
};

class DeviceCase {
 public:
  // Filled with the case's data, a backward's o and lse being those of a forward on the device;
  // outputs and workspace are poison. Without a plan it makes its own.
  explicit DeviceCase(const ProblemCase& c, cudaStream_t stream = nullptr,
                      SharedPlan plan = nullptr, int32_t device = 0);
  explicit DeviceCase(const std::string& line, cudaStream_t stream = nullptr)
      : DeviceCase(case_of(line), stream) {}

  const SharedPlan& plan() const { return plan_; }
  // Data and lengths of another case of the same tensors; outputs and workspace become poison.
  // Returns when all of it has arrived.
  void refill(const ProblemCase& other);
  tilewise_status launch() const { return launch(plan_); }
  tilewise_status launch(const SharedPlan& plan) const;
  // Launches, demands that it was accepted, and returns what came out.
  Bits run();
  // Waits for the device, then the outputs; throws when something beside them was written.
  Bits outputs();
  // Are the outputs as they were before the call?
  bool untouched();
  // A tensor as outputs() found it, without gaps.
  std::vector<std::byte> packed(TensorId id) const { return tensors_.packed(id); }

  // What launch() passes, by the direction.
  tilewise_forward_params params = TILEWISE_FORWARD_PARAMS_INIT;
  tilewise_backward_params backward = TILEWISE_BACKWARD_PARAMS_INIT;

 private:
  const AttentionProblem& problem() const { return tensors_.problem(); }
  template <class Params>
  void set_params(Params& to, cudaStream_t stream);
  void upload();

  harness::Tensors tensors_;
  int32_t device_;
  SharedPlan plan_;
  std::unique_ptr<harness::DeviceMirror> mirror_;
};

}  // namespace tilewise::cuda::test
