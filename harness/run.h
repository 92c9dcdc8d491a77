// Running a case through the C ABI.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/problem.h"
#include "harness/buffers.h"
#include "harness/device_mirror.h"
#include "tilewise/tilewise.h"

namespace tilewise::harness {

struct RunOptions {
  int32_t threads = 0;       // 0: all cores
  int32_t cuda_device = -1;  // -1: the CPU
  std::string kernel;        // forces the kernel of the case's direction; empty: the first that can
  std::string forward_kernel;  // of the forward call before a backward one
  bool want_lse = true;        // forward cases may pass no lse
  const tilewise_thread_pool* pool = nullptr;

  // Misuse on purpose: called on what is about to be passed, for both directions.
  std::function<void(tilewise_problem&)> edit_problem;
  std::function<void(tilewise_plan_options&)> edit_plan_options;
  std::function<void(tilewise_forward_params&)> edit_forward;
  std::function<void(tilewise_backward_params&)> edit_backward;
};

struct RunOutcome {
  tilewise_status status = TILEWISE_OK;
  std::string error;   // tilewise_last_error() when not ok
  std::string stage;   // "plan", "forward" or "backward": where it stopped
  std::string kernel;  // of the case's direction
  int32_t threads = 0;
  int32_t num_splits = 0;
  uint64_t workspace_bytes = 0;
  double seconds = 0;  // wall time of the run calls
  // What the call did to memory that it may not do (Tensors::damage(), or written() if it failed);
  // run_direction() and run_case() only.
  std::optional<std::string> damage;
  bool ok() const { return status == TILEWISE_OK; }
};

struct DestroyPlan {
  void operator()(tilewise_plan* plan) const { tilewise_plan_destroy(plan); }
};

// One direction of a case, planned once and run any number of times on the same tensors.
class PreparedRun {
 public:
  PreparedRun(Tensors& tensors, Direction direction, const RunOptions& options);

  bool ok() const { return outcome_.ok(); }
  const RunOutcome& outcome() const { return outcome_; }
  tilewise_status run();  // also kept in outcome(); on a CUDA device the launch alone

  // CUDA: the tensors to the device and back. Nothing on the CPU.
  void upload();
  void download();

 private:
  void fill_params(Tensors& tensors, const RunOptions& options);
  void move_params_to_device();

  Direction direction_;
  std::unique_ptr<tilewise_plan, DestroyPlan> plan_;
  std::unique_ptr<DeviceMirror> mirror_;
  tilewise_forward_params forward_ = TILEWISE_FORWARD_PARAMS_INIT;
  tilewise_backward_params backward_ = TILEWISE_BACKWARD_PARAMS_INIT;
  RunOutcome outcome_;
};

// Plan, workspace, run and look for damage. Inputs must be filled; outputs are poisoned first. The
// backward needs o and lse of a forward run.
RunOutcome run_direction(Tensors& tensors, Direction direction, const RunOptions& options = {});

// The forward and, for a backward case, the backward after it.
RunOutcome run_case(Tensors& tensors, const RunOptions& options = {});

}  // namespace tilewise::harness
