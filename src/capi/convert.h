// C structs <-> core: enum values, booleans, strides. Core checks everything else.
#pragma once

#include "core/device.h"
#include "core/plan.h"
#include "core/problem.h"
#include "core/status.h"
#include "tilewise/tilewise.h"

namespace tilewise::capi {

// Sizes of the structs in release 0.1, the first.
constexpr size_t kFirstProblemSize = 400;
constexpr size_t kFirstPlanOptionsSize = 32;
constexpr size_t kFirstPlanInfoSize = 40;
constexpr size_t kFirstForwardSize = 112;
constexpr size_t kFirstBackwardSize = 144;
constexpr size_t kFirstMergeSize = 152;
constexpr size_t kFirstDeviceInfoSize = 440;

// Validates.
Status problem_of(const tilewise_problem* given, AttentionProblem& problem);
// Into the caller's struct. Contiguous strides become 0.
void write_problem(const AttentionProblem& problem, tilewise_problem* given);

// Options may be null.
Status options_of(const tilewise_plan_options* given, Device& device, PlanOptions& options);
// A kind of device that exists, and a backend that this build has.
Status check_device_kind(int32_t device_kind);
Status find_device(int32_t device_kind, int32_t device_index, Device& device);

// Into strides when all four are 0, `contiguous`. `name` is the path of the struct, for the
// message.
Status strides_of(const char* name, const tilewise_strides& given, const Strides& contiguous,
                  Strides& strides);

}  // namespace tilewise::capi
