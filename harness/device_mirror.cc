#include "harness/device_mirror.h"

#include <stdexcept>

#if defined(TILEWISE_USE_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace tilewise::harness {

#if defined(TILEWISE_USE_CUDA)
namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

}  // namespace

DeviceMirror::DeviceMirror(Tensors& tensors, int32_t device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  for (const auto& memory : tensors.memory()) {
    void* copy = nullptr;
    check(cudaMalloc(&copy, memory.size()), "cudaMalloc");
    blocks_.push_back({memory.data(), memory.size(), static_cast<std::byte*>(copy)});
  }
}

DeviceMirror::~DeviceMirror() {
  for (const Block& block : blocks_) (void)cudaFree(block.device);
}

void DeviceMirror::upload() {
  for (const Block& b : blocks_) {
    check(cudaMemcpy(b.device, b.host, b.bytes, cudaMemcpyHostToDevice), "upload");
  }
}

void DeviceMirror::download() {
  check(cudaDeviceSynchronize(), "kernel");
  for (const Block& b : blocks_) {
    check(cudaMemcpy(b.host, b.device, b.bytes, cudaMemcpyDeviceToHost), "download");
  }
}

#else

DeviceMirror::DeviceMirror(Tensors&, int32_t) {
  throw std::runtime_error("this build has no CUDA backend");
}
DeviceMirror::~DeviceMirror() = default;
void DeviceMirror::upload() {}
void DeviceMirror::download() {}

#endif

const void* DeviceMirror::translate(const void* host) const {
  if (host == nullptr) return nullptr;
  for (const Block& b : blocks_) {
    const auto offset = static_cast<const std::byte*>(host) - b.host;
    if (offset >= 0 && static_cast<std::size_t>(offset) < b.bytes) return b.device + offset;
  }
  return host;  // a pointer that a test passes wrong on purpose
}

}  // namespace tilewise::harness
