// Plans of the CUDA kernels for devices that are only described.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "core/plan.h"
#include "core/registry.h"
#include "cuda/entries.h"

namespace tilewise::cuda {

constexpr int32_t kKiB = 1024;

inline Device device_of(int32_t sm, int32_t num_sms, int32_t shared_bytes) {
  Device d;
  d.kind = DeviceKind::kCuda;
  d.sm = sm;
  d.num_sms = num_sms;
  d.shared_bytes = shared_bytes;
  return d;
}
inline const Device kV100 = device_of(70, 80, 96 * kKiB);
inline const Device kA100 = device_of(80, 108, 163 * kKiB);
inline const Device kRtx3090 = device_of(86, 82, 99 * kKiB);
inline const Device kH200 = device_of(90, 132, 227 * kKiB);
inline const Device kRtx5090 = device_of(120, 170, 99 * kKiB);

class CudaPlans : public testing::Test {
 protected:
  void SetUp() override { unsetenv("TILEWISE_KERNEL"); }

  Result<Plan> plan(const std::string& line, const Device& device) const {
    const Result<AttentionProblem> problem = parse_problem(line);
    if (!problem.ok()) return problem.status();
    return make_plan(*problem, device, {}, registry_);
  }
  // The kernel's name, or the text of the refusal.
  std::string chosen(const std::string& line, const Device& device) const {
    const Result<Plan> p = plan(line, device);
    return p.ok() ? std::string(p->entry->name) : p.status().message();
  }
  bool has_sm90() const { return registry_.find("sm90.forward.d64.full.bf16") != nullptr; }
  std::string reason(const std::string& line, const Device& device, const char* kernel) const {
    const Result<AttentionProblem> problem = parse_problem(line);
    if (!problem.ok()) return problem.status().message();
    return registry_.find(kernel)->supports(*problem, device).reason;
  }

  Registry registry_{entries()};
};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace tilewise::cuda
