#include "tests/cuda/device_case.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "harness/data.h"
#include "harness/problem_abi.h"
#include "harness/run.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

void fill(harness::Tensors& tensors, int32_t device) {
  if (Status s = harness::fill_inputs(tensors); !s.ok()) throw std::runtime_error(s.message());
  if (tensors.problem().backward()) {
    harness::RunOptions options;
    options.cuda_device = device;
    const harness::RunOutcome forward =
        harness::run_direction(tensors, Direction::kForward, options);
    if (!forward.ok() || forward.damage) {
      throw std::runtime_error(forward.error + forward.damage.value_or(""));
    }
  }
  tensors.poison_outputs(tensors.problem().direction);
}

}  // namespace

ProblemCase case_of(const std::string& line) {
  Result<ProblemCase> c = parse_case(line);
  if (!c.ok()) throw std::runtime_error(c.status().message());
  return *c;
}

SharedPlan make_plan(const AttentionProblem& problem, int32_t device, const char* kernel) {
  const tilewise_problem abi = harness::to_abi(problem);
  tilewise_plan_options options = TILEWISE_PLAN_OPTIONS_INIT;
  options.device_kind = TILEWISE_CUDA;
  options.device_index = device;
  options.kernel = kernel;
  tilewise_plan* plan = nullptr;
  if (tilewise_plan_create(&abi, &options, &plan) != TILEWISE_OK) {
    throw std::runtime_error(tilewise_last_error());
  }
  return SharedPlan(plan, tilewise_plan_destroy);
}

tilewise_plan_info info_of(const SharedPlan& plan) {
  tilewise_plan_info info = TILEWISE_PLAN_INFO_INIT;
  tilewise_plan_get_info(plan.get(), &info);
  return info;
}

std::vector<TensorId> reproducible(const AttentionProblem& problem) {
  if (!problem.backward()) return {TensorId::kO};
  if (!problem.deterministic) return {TensorId::kDk, TensorId::kDv};
  return {TensorId::kDk, TensorId::kDv, TensorId::kDq};
}

bool Bits::operator==(const Bits& other) const {
  return elements == other.elements && lse.size() == other.lse.size() &&
         std::memcmp(lse.data(), other.lse.data(), lse.size() * sizeof(float)) == 0;
}

DeviceCase::DeviceCase(const ProblemCase& c, cudaStream_t stream, SharedPlan plan, int32_t device)
    : tensors_(c),
      device_(device),
      plan_(plan != nullptr ? std::move(plan) : make_plan(c.problem, device)) {
  fill(tensors_, device);
  const tilewise_plan_info info = info_of(plan_);
  tensors_.make_workspace(info.workspace_bytes, info.workspace_align);
  mirror_ = std::make_unique<harness::DeviceMirror>(tensors_, device);
  set_params(params, stream);
  params.lse = mirror_->on_device(tensors_.lse());
  params.o = mirror_->on_device(tensors_.pointer(TensorId::kO));
  set_params(backward, stream);
  backward.lse = params.lse;
  backward.o = params.o;
  backward.do_ = mirror_->on_device(tensors_.pointer(TensorId::kDo));
  backward.dq = mirror_->on_device(tensors_.pointer(TensorId::kDq));
  backward.dk = mirror_->on_device(tensors_.pointer(TensorId::kDk));
  backward.dv = mirror_->on_device(tensors_.pointer(TensorId::kDv));
  upload();
}

template <class Params>
void DeviceCase::set_params(Params& to, cudaStream_t stream) {
  to.q = mirror_->on_device(tensors_.pointer(TensorId::kQ));
  to.k = mirror_->on_device(tensors_.pointer(TensorId::kK));
  to.v = mirror_->on_device(tensors_.pointer(TensorId::kV));
  to.alibi_slopes = mirror_->on_device(tensors_.alibi_slopes());
  to.alibi_batch_stride = tensors_.alibi_batch_stride();
  to.cu_seqlens_q = mirror_->on_device(tensors_.cu_seqlens_q());
  to.cu_seqlens_k = mirror_->on_device(tensors_.cu_seqlens_k());
  to.workspace = mirror_->on_device(tensors_.workspace());
  to.workspace_bytes = tensors_.workspace_bytes();
  to.stream = stream;
}

tilewise_status DeviceCase::launch(const SharedPlan& plan) const {
  return problem().backward() ? tilewise_backward(plan.get(), &backward)
                              : tilewise_forward(plan.get(), &params);
}

void DeviceCase::upload() {
  tensors_.seal_inputs(problem().direction);
  mirror_->upload();
  require(cudaDeviceSynchronize());
}

void DeviceCase::refill(const ProblemCase& other) {
  harness::Tensors source(other);
  fill(source, device_);
  const tilewise_plan_info info = info_of(plan_);
  source.make_workspace(info.workspace_bytes, info.workspace_align);
  const auto from = source.memory(), to = tensors_.memory();
  if (from.size() != to.size()) throw std::runtime_error("cases of different tensors");
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i].size() != to[i].size()) throw std::runtime_error("cases of different tensors");
    std::copy(from[i].begin(), from[i].end(), to[i].begin());
  }
  upload();
}

Bits DeviceCase::run() {
  if (launch() != TILEWISE_OK) throw std::runtime_error(tilewise_last_error());
  return outputs();
}

Bits DeviceCase::outputs() {
  mirror_->download();
  if (const auto damage = tensors_.damage(problem().direction)) throw std::runtime_error(*damage);
  Bits bits;
  for (const TensorId id : reproducible(problem())) {
    const std::vector<std::byte> elements = packed(id);
    bits.elements.insert(bits.elements.end(), elements.begin(), elements.end());
  }
  if (!problem().backward()) bits.lse = tensors_.packed_lse();
  return bits;
}

bool DeviceCase::untouched() {
  mirror_->download();
  return !tensors_.written(problem().direction).has_value();
}

}  // namespace tilewise::cuda::test
