#include "cuda/device.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "core/format.h"

namespace tilewise::cuda {
namespace {

struct Known {
  Device device;
  std::string name;
};

struct Machine {
  std::vector<Known> devices;
  std::string note;

  Machine() {
    int count = 0, driver = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    (void)cudaGetLastError();  // a machine without a device is no error of the host program
    (void)cudaDriverGetVersion(&driver);
    if (error != cudaSuccess) {
      note = driver == 0 ? "off: no CUDA driver" : format("off: {}", cudaGetErrorString(error));
      return;
    }
    for (int i = 0; i < count; ++i) {
      cudaDeviceProp properties;
      if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) break;
      Known known;
      known.device.kind = DeviceKind::kCuda;
      known.device.index = i;
      known.device.sm = 10 * properties.major + properties.minor;
      known.device.num_sms = properties.multiProcessorCount;
      known.device.shared_bytes = static_cast<int32_t>(properties.sharedMemPerBlockOptin);
      known.name = properties.name;
      devices.push_back(known);
    }
    note = format("on: {} device{}, driver {}.{}", devices.size(), devices.size() == 1 ? "" : "s",
                  driver / 1000, driver % 1000 / 10);
  }
};

const Machine& machine() {
  static const Machine* const known = new Machine;  // never destroyed, as the registry
  return *known;
}

}  // namespace

int32_t device_count() { return static_cast<int32_t>(machine().devices.size()); }

Result<Device> cuda_device(int32_t index) {
  if (device_count() == 0) {
    return Status{StatusCode::kDevice, format("device_kind is 1 (CUDA); {}", machine().note)};
  }
  if (index < 0 || index >= device_count()) {
    return invalid_argument("device_index is {}; this machine has {} CUDA device{}", index,
                            device_count(), device_count() == 1 ? "" : "s");
  }
  return machine().devices[static_cast<size_t>(index)].device;
}

std::string device_name(int32_t index) {
  if (index < 0 || index >= device_count()) return {};
  return machine().devices[static_cast<size_t>(index)].name;
}

const char* backend_note() { return machine().note.c_str(); }

}  // namespace tilewise::cuda
