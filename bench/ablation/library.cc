#include "bench/ablation/library.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace tilewise::ablation {
namespace {

void must(tilewise_status status) {
  if (status == TILEWISE_OK) return;
  std::fprintf(stderr, "error: %s\n", tilewise_last_error());
  std::exit(1);
}

}  // namespace

LibraryForward::LibraryForward(const Problem& problem) {
  tilewise_problem p = TILEWISE_PROBLEM_INIT;
  p.dtype = static_cast<int32_t>(problem.dtype);
  p.batch = problem.batch;
  p.seqlen_q = p.seqlen_k = problem.seqlen;
  p.num_heads = p.num_heads_kv = problem.heads;
  p.head_dim = p.head_dim_v = problem.head_dim;
  p.causal = problem.causal;
  const std::string kernel = "sm80.forward.d" + std::to_string(problem.head_dim) +
                             (problem.causal ? ".banded." : ".full.") + name_of(problem.dtype);
  tilewise_plan_options options = TILEWISE_PLAN_OPTIONS_INIT;
  options.device_kind = TILEWISE_CUDA;
  options.kernel = kernel.c_str();
  tilewise_plan* plan = nullptr;
  must(tilewise_plan_create(&p, &options, &plan));
  plan_.reset(plan);
  tilewise_plan_info info = TILEWISE_PLAN_INFO_INIT;
  must(tilewise_plan_get_info(plan, &info));
  workspace_ = std::make_unique<DeviceArray<char>>(static_cast<int64_t>(info.workspace_bytes));
}

void LibraryForward::run(const Tensors& tensors) const {
  tilewise_forward_params run = TILEWISE_FORWARD_PARAMS_INIT;
  run.q = tensors.q.data();
  run.k = tensors.k.data();
  run.v = tensors.v.data();
  run.o = tensors.o.data();
  run.lse = tensors.lse.data();
  run.workspace = workspace_->data();
  run.workspace_bytes = workspace_->bytes();
  must(tilewise_forward(plan_.get(), &run));
}

}  // namespace tilewise::ablation
