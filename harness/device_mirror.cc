#include "harness/device_mirror.h"

#include <stdexcept>
#include <utility>

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

void FreeOnDevice::operator()(std::byte* p) const { (void)cudaFree(p); }

DeviceMirror::DeviceMirror(Tensors& tensors, int32_t device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  for (const auto& memory : tensors.memory()) {
    void* copy = nullptr;
    const cudaError_t error = cudaMalloc(&copy, memory.size());
    (void)cudaGetLastError();  // it is in `error`; no later call is to find it
    check(error, "cudaMalloc");
    std::unique_ptr<std::byte, FreeOnDevice> owned(static_cast<std::byte*>(copy));
    blocks_.push_back({memory.data(), memory.size(), std::move(owned)});
  }
}

void DeviceMirror::upload() {
  for (const Block& b : blocks_) {
    check(cudaMemcpy(b.device.get(), b.host, b.bytes, cudaMemcpyHostToDevice), "upload");
  }
}

void DeviceMirror::download() {
  check(cudaDeviceSynchronize(), "kernel");
  for (const Block& b : blocks_) {
    check(cudaMemcpy(b.host, b.device.get(), b.bytes, cudaMemcpyDeviceToHost), "download");
  }
}

#else

void FreeOnDevice::operator()(std::byte*) const {}
DeviceMirror::DeviceMirror(Tensors&, int32_t) {
  throw std::runtime_error("this build has no CUDA backend");
}
void DeviceMirror::upload() {}
void DeviceMirror::download() {}

#endif

const void* DeviceMirror::translate(const void* host) const {
  if (host == nullptr) return nullptr;
  for (const Block& b : blocks_) {
    const auto offset = static_cast<const std::byte*>(host) - b.host;
    if (offset >= 0 && static_cast<std::size_t>(offset) < b.bytes) return b.device.get() + offset;
  }
  return host;  // a pointer that a test passes wrong on purpose
}

}  // namespace tilewise::harness
