// CUDA devices, asked once each.
#pragma once

#include <cstdint>
#include <string>

#include "core/device.h"
#include "core/status.h"

namespace tilewise::cuda {

// 0 when there is none, or no driver.
int32_t device_count();

// Properties of a device; an error that says which devices there are.
Result<Device> cuda_device(int32_t index);

// "NVIDIA H200"; empty for a device that is not there.
std::string device_name(int32_t index);

// "on: 1 device, driver 13.0", or why the backend is off. Static storage.
const char* backend_note();

}  // namespace tilewise::cuda
