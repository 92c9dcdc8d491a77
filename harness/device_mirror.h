// The memory of a case on a CUDA device: every buffer of Tensors with its guards, byte for byte, so
// that what a kernel wrote where is judged on the host by the same code as for the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/buffers.h"

namespace tilewise::harness {

struct FreeOnDevice {
  void operator()(std::byte* p) const;
};

class DeviceMirror {
 public:
  // Allocates on a device and makes it the current one. Throws std::runtime_error when the device
  // refuses, or when this build has no CUDA.
  DeviceMirror(Tensors& tensors, int32_t device);

  void upload();
  void download();  // waits for the device first; what failed there is an exception here

  // The device's address of a host address inside a buffer; null stays null.
  template <class T>
  T* on_device(T* host) const {
    return static_cast<T*>(const_cast<void*>(translate(host)));
  }

 private:
  const void* translate(const void* host) const;

  struct Block {
    std::byte* host;
    std::size_t bytes;
    std::unique_ptr<std::byte, FreeOnDevice> device;
  };
  std::vector<Block> blocks_;
};

}  // namespace tilewise::harness
