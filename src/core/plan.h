// Plan: the kernel chosen for a problem on a device, with its launch shape and workspace size.
// Immutable, shared freely between threads, owns no memory, depends on shapes and options only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/problem.h"
#include "core/status.h"

namespace tilewise {

struct KernelEntry;
class Registry;

// The caller's own thread pool: calls task(context, i) for every i in [0, count), on any threads,
// and returns when all have finished.
struct ThreadPool {
  void (*parallel_for)(void* pool, int64_t count, void (*task)(void* context, int64_t i),
                       void* context) = nullptr;
  void* pool = nullptr;
};

constexpr int64_t kWorkspaceAlign = 64;    // bytes
constexpr int32_t kMostThreads = 1 << 16;  // so that kernels may multiply it in an int

struct PlanOptions {
  int32_t threads = 0;  // most threads a run may use; 0: every core of the device
  std::string kernel;   // forces one entry by name; empty: TILEWISE_KERNEL, else first yes
};

// How a kernel divides its work. What a field means is the kernel's own business; all are
// functions of problem, device and options.
struct LaunchShape {
  int32_t threads = 1;
  int32_t num_splits = 1;      // pieces of the key sequence (decode)
  int64_t block_rows = 0;      // query rows (forward) or keys (backward) of one task
  int64_t heads_per_wave = 0;  // backward: heads whose fp32 dq partials are alive at once
  int64_t num_tasks = 0;       // an upper bound when varlen
};

struct Plan {
  AttentionProblem problem;
  Device device;
  const KernelEntry* entry = nullptr;
  LaunchShape shape;
  int64_t workspace_bytes = 0;
};

struct ForwardArgs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* o = nullptr;
  float* lse = nullptr;                   // optional; (batch, head, seqlen_q) or (head, total_q)
  const float* alibi_slopes = nullptr;    // (head) or (batch, head)
  int64_t alibi_batch_stride = 0;         // 0: one set of slopes for all batches
  const int32_t* cu_seqlens_q = nullptr;  // batch + 1 entries, varlen only
  const int32_t* cu_seqlens_k = nullptr;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  void* stream = nullptr;
  const ThreadPool* pool = nullptr;
};

struct BackwardArgs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* o = nullptr;
  const void* do_ = nullptr;
  const float* lse = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  const float* alibi_slopes = nullptr;
  int64_t alibi_batch_stride = 0;
  const int32_t* cu_seqlens_q = nullptr;
  const int32_t* cu_seqlens_k = nullptr;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  void* stream = nullptr;
  const ThreadPool* pool = nullptr;
};

// Validates, asks the registry in order, and lets the chosen entry fill the launch shape. When no
// entry says yes the status is kUnsupported and its message has every candidate with its reason.
Result<Plan> make_plan(const AttentionProblem& problem, const Device& device,
                       const PlanOptions& options, const Registry& registry);

// Checks pointers, alignment, overlap, cu_seqlens (CPU) and workspace, then launches. Nothing is
// written unless the status is ok.
Status run_forward(const Plan& plan, const ForwardArgs& args);
Status run_backward(const Plan& plan, const BackwardArgs& args);

// The checks of run_*, without the launch (src/core/arguments.cc).
Status check_arguments(const Plan& plan, const ForwardArgs& args);
Status check_arguments(const Plan& plan, const BackwardArgs& args);

}  // namespace tilewise
