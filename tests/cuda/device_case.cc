#include "tests/cuda/device_case.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "harness/data.h"
#include "harness/problem_abi.h"
#include "tests/cuda/support.h"

namespace tilewise::cuda::test {
namespace {

constexpr Direction kForward = Direction::kForward;

void fill(harness::Tensors& tensors) {
  if (Status s = harness::fill_inputs(tensors); !s.ok()) throw std::runtime_error(s.message());
  tensors.poison_outputs(kForward);
}

}  // namespace

ProblemCase case_of(const std::string& line) {
  Result<ProblemCase> c = parse_case(line);
  if (!c.ok()) throw std::runtime_error(c.status().message());
  return *c;
}

SharedPlan make_plan(const AttentionProblem& problem, int32_t device) {
  const tilewise_problem abi = harness::to_abi(problem);
  tilewise_plan_options options = TILEWISE_PLAN_OPTIONS_INIT;
  options.device_kind = TILEWISE_CUDA;
  options.device_index = device;
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

bool Bits::operator==(const Bits& other) const {
  return o == other.o && lse.size() == other.lse.size() &&
         std::memcmp(lse.data(), other.lse.data(), lse.size() * sizeof(float)) == 0;
}

DeviceCase::DeviceCase(const ProblemCase& c, cudaStream_t stream, SharedPlan plan, int32_t device)
    : tensors_(c), plan_(plan != nullptr ? std::move(plan) : make_plan(c.problem, device)) {
  fill(tensors_);
  const tilewise_plan_info info = info_of(plan_);
  tensors_.make_workspace(info.workspace_bytes, info.workspace_align);
  mirror_ = std::make_unique<harness::DeviceMirror>(tensors_, device);
  params.q = mirror_->on_device(tensors_.pointer(TensorId::kQ));
  params.k = mirror_->on_device(tensors_.pointer(TensorId::kK));
  params.v = mirror_->on_device(tensors_.pointer(TensorId::kV));
  params.o = mirror_->on_device(tensors_.pointer(TensorId::kO));
  params.lse = mirror_->on_device(tensors_.lse());
  params.alibi_slopes = mirror_->on_device(tensors_.alibi_slopes());
  params.alibi_batch_stride = tensors_.alibi_batch_stride();
  params.cu_seqlens_q = mirror_->on_device(tensors_.cu_seqlens_q());
  params.cu_seqlens_k = mirror_->on_device(tensors_.cu_seqlens_k());
  params.workspace = mirror_->on_device(tensors_.workspace());
  params.workspace_bytes = info.workspace_bytes;
  params.stream = stream;
  upload();
}

void DeviceCase::upload() {
  tensors_.seal_inputs(kForward);
  mirror_->upload();
  require(cudaDeviceSynchronize());
}

void DeviceCase::refill(const ProblemCase& other) {
  harness::Tensors source(other);
  fill(source);
  const auto from = source.memory(), to = tensors_.memory();  // the workspace comes last
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i].size() != to[i].size()) throw std::runtime_error("cases of different tensors");
    std::copy(from[i].begin(), from[i].end(), to[i].begin());
  }
  if (tensors_.workspace() != nullptr) {
    std::memset(tensors_.workspace(), harness::Buffer::kPoison, tensors_.workspace_bytes());
  }
  upload();
}

Bits DeviceCase::run() {
  if (launch() != TILEWISE_OK) throw std::runtime_error(tilewise_last_error());
  return outputs();
}

Bits DeviceCase::outputs() {
  mirror_->download();
  if (const auto damage = tensors_.damage(kForward)) throw std::runtime_error(*damage);
  return {tensors_.packed(TensorId::kO), tensors_.packed_lse()};
}

bool DeviceCase::untouched() {
  mirror_->download();
  return !tensors_.written(kForward).has_value();
}

}  // namespace tilewise::cuda::test
