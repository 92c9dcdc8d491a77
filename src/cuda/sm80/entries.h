// What the entries of the CUDA kernels share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "core/registry.h"
#include "cuda/params.h"
#include "cuda/tile_config.h"

namespace tilewise::cuda::sm80 {

std::vector<const KernelEntry*> forward_entries();
std::vector<const KernelEntry*> backward_entries();

// The plan's forward whatever its rows' alignment and its kernel, in as many splits. Takes
// workspace for their partial results alone, from its start on.
template <DType kType, int kHeadDim>
Status run_general_forward(const Plan& plan, const ForwardArgs& args);
// A backward, likewise, with the workspace of a kernel whose tile has the same head_dim.
template <DType kType, int kHeadDim>
Status run_general_backward(const Plan& plan, const BackwardArgs& args);

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The largest int64_t when the product does not fit.
inline int64_t times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

// What an instance was compiled for, and the least shared memory it needs.
struct Instance {
  DType dtype;
  int head_dim;
  Variant variant;
  int smem_bytes;
};
Answer supports_common(const AttentionProblem& p, const Device& device, const Instance& instance);
// Are rows made of whole chunks of 16 bytes? Where tensors begin is known when they come.
Answer supports_vectors(const AttentionProblem& p);

TensorRef tensor_ref(const AttentionProblem& p, TensorId id, const void* data);

// The workspace of a backward, in this order; offsets and sizes in bytes, multiples of 256. A part
// of no bytes is not there.
struct BackwardWorkspace {
  int64_t padded_q = 0;  // BackwardParams
  int64_t dq_sum = 0, row_lse = 0, delta = 0, dq_turn = 0, ticket = 0, size = 0;
  bool with_turns = false, with_ticket = false;

  // head_dim: of the kernel's tile.
  BackwardWorkspace(const AttentionProblem& p, int head_dim, bool with_ticket);

 private:
  int64_t take(int64_t bytes);
};

// All of a backward's parameters but n_blocks.
void set_backward_params(BackwardParams& params, const AttentionProblem& p,
                         const BackwardArgs& args, const BackwardWorkspace& at);
// kOverflow when the size does.
Status set_workspace_bytes(Plan& plan, const BackwardWorkspace& at);

// q, k, v, mask, scores and lengths: what ForwardArgs and BackwardArgs have in common.
template <class Args>
void set_attention_params(AttentionParams& params, const AttentionProblem& p, const Args& args);

// Are the current device and the stream's the plan's? A launch on a stream of another device would
// be accepted, and would reach for the tensors from there.
Status check_devices(const Device& device, void* stream);
Status status_of(const Plan& plan, cudaError_t error);

}  // namespace tilewise::cuda::sm80
