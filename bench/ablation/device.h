// Device memory and errors, for programs: an error of CUDA ends them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace tilewise::ablation {

inline void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "error: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t size) : size_(size) {
    if (size > 0) must(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()), "cudaMalloc");
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  int64_t size() const { return size_; }
  size_t bytes() const { return static_cast<size_t>(size_) * sizeof(T); }
  // Every byte 0xff: NaN in each type used here.
  void poison() { must(cudaMemset(data_, 0xff, bytes()), "cudaMemset"); }
  std::vector<T> to_host() const {
    std::vector<T> host(static_cast<size_t>(size_));
    must(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return host;
  }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace tilewise::ablation
