#include "harness/run.h"

#include "harness/peak.h"
#include "harness/problem_abi.h"

namespace tilewise::harness {
namespace {

template <class Params>
void fill_common(Tensors& t, const RunOptions& options, Params& params) {
  params.q = t.pointer(TensorId::kQ);
  params.k = t.pointer(TensorId::kK);
  params.v = t.pointer(TensorId::kV);
  params.alibi_slopes = t.alibi_slopes();
  params.alibi_batch_stride = t.alibi_batch_stride();
  params.cu_seqlens_q = t.cu_seqlens_q();
  params.cu_seqlens_k = t.cu_seqlens_k();
  params.workspace = t.workspace();
  params.workspace_bytes = t.workspace_bytes();
  params.pool = options.pool;
}

}  // namespace

PreparedRun::PreparedRun(Tensors& tensors, Direction direction, const RunOptions& options)
    : direction_(direction) {
  const bool forward_of_backward = direction == Direction::kForward && tensors.problem().backward();
  outcome_.stage = "plan";
  AttentionProblem p = tensors.problem();
  p.direction = direction;
  if (direction == Direction::kForward) p.deterministic = false;
  tilewise_problem problem = to_abi(p);
  if (options.edit_problem) options.edit_problem(problem);
  tilewise_plan_options plan_options = TILEWISE_PLAN_OPTIONS_INIT;
  plan_options.threads = options.threads;
  if (options.cuda_device >= 0) {
    plan_options.device_kind = TILEWISE_CUDA;
    plan_options.device_index = options.cuda_device;
  }
  const std::string& kernel = forward_of_backward ? options.forward_kernel : options.kernel;
  if (!kernel.empty()) plan_options.kernel = kernel.c_str();
  if (options.edit_plan_options) options.edit_plan_options(plan_options);
  tilewise_plan* plan = nullptr;
  outcome_.status = tilewise_plan_create(&problem, &plan_options, &plan);
  plan_.reset(plan);
  if (!ok()) {
    outcome_.error = tilewise_last_error();
    return;
  }
  tilewise_plan_info info = TILEWISE_PLAN_INFO_INIT;
  tilewise_plan_get_info(plan, &info);
  outcome_.kernel = info.kernel;
  outcome_.threads = info.threads;
  outcome_.num_splits = info.num_splits;
  outcome_.workspace_bytes = info.workspace_bytes;
  tensors.make_workspace(info.workspace_bytes, info.workspace_align);
  fill_params(tensors, options);
  if (options.cuda_device >= 0) {
    mirror_ = std::make_unique<DeviceMirror>(tensors, options.cuda_device);
    move_params_to_device();
  }
}

void PreparedRun::upload() {
  if (mirror_ != nullptr) mirror_->upload();
}
void PreparedRun::download() {
  if (mirror_ != nullptr) mirror_->download();
}

void PreparedRun::move_params_to_device() {
  const auto move = [this](auto& params) {
    params.q = mirror_->on_device(params.q);
    params.k = mirror_->on_device(params.k);
    params.v = mirror_->on_device(params.v);
    params.o = mirror_->on_device(params.o);
    params.lse = mirror_->on_device(params.lse);
    params.alibi_slopes = mirror_->on_device(params.alibi_slopes);
    params.cu_seqlens_q = mirror_->on_device(params.cu_seqlens_q);
    params.cu_seqlens_k = mirror_->on_device(params.cu_seqlens_k);
    params.workspace = mirror_->on_device(params.workspace);
  };
  move(forward_);
  move(backward_);
  backward_.do_ = mirror_->on_device(backward_.do_);
  backward_.dq = mirror_->on_device(backward_.dq);
  backward_.dk = mirror_->on_device(backward_.dk);
  backward_.dv = mirror_->on_device(backward_.dv);
}

void PreparedRun::fill_params(Tensors& t, const RunOptions& options) {
  if (direction_ == Direction::kForward) {
    outcome_.stage = "forward";
    fill_common(t, options, forward_);
    forward_.o = t.pointer(TensorId::kO);
    const bool want_lse = options.want_lse || t.problem().backward();
    forward_.lse = want_lse ? t.lse() : nullptr;
    if (options.edit_forward) options.edit_forward(forward_);
    return;
  }
  outcome_.stage = "backward";
  fill_common(t, options, backward_);
  backward_.o = t.pointer(TensorId::kO);
  backward_.do_ = t.pointer(TensorId::kDo);
  backward_.lse = t.lse();
  backward_.dq = t.pointer(TensorId::kDq);
  backward_.dk = t.pointer(TensorId::kDk);
  backward_.dv = t.pointer(TensorId::kDv);
  if (options.edit_backward) options.edit_backward(backward_);
}

tilewise_status PreparedRun::run() {
  if (plan_ == nullptr) return outcome_.status;
  const double start = wall_seconds();
  outcome_.status = direction_ == Direction::kForward ? tilewise_forward(plan_.get(), &forward_)
                                                      : tilewise_backward(plan_.get(), &backward_);
  outcome_.seconds += wall_seconds() - start;
  outcome_.error = ok() ? "" : tilewise_last_error();
  return outcome_.status;
}

RunOutcome run_direction(Tensors& tensors, Direction direction, const RunOptions& options) {
  tensors.poison_outputs(direction);
  tensors.seal_inputs(direction);
  PreparedRun run(tensors, direction, options);
  if (run.ok()) {
    run.upload();
    run.run();
    run.download();
  }
  RunOutcome outcome = run.outcome();
  outcome.damage = outcome.ok() ? tensors.damage(direction) : tensors.written(direction);
  return outcome;
}

RunOutcome run_case(Tensors& tensors, const RunOptions& options) {
  const bool backward = tensors.problem().backward();
  RunOutcome forward = run_direction(tensors, Direction::kForward, options);
  if (!backward || !forward.ok() || forward.damage) return forward;
  RunOutcome outcome = run_direction(tensors, Direction::kBackward, options);
  outcome.seconds += forward.seconds;
  return outcome;
}

}  // namespace tilewise::harness
