// Tiles of tensors between global and shared memory, moved by the copy engine (PTX ISA 9.7.9,
// cp.async.bulk.tensor). One thread asks for a whole tile; the tensor's description, made by the
// host, knows strides, sizes, the tile's box and its swizzle. sm_90.
#pragma once

#include <cstdint>

namespace tilewise::ptx {

// Coordinates of a box's first element: (dim, seqlen, head, batch). Parts of a box beyond the
// tensor are zeros when loaded, and are not stored.
struct TensorCoordinates {
  int dim, seqlen, head, batch;
};

// The barrier gets the bytes of the whole box. smem: aligned as the swizzle asks.
__device__ __forceinline__ void tma_load(uint32_t smem, const void* map, TensorCoordinates at,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(smem),
      "l"(map), "r"(barrier), "r"(at.dim), "r"(at.seqlen), "r"(at.head), "r"(at.batch)
      : "memory");
}
__device__ __forceinline__ void tma_store(const void* map, TensorCoordinates at, uint32_t smem) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n" ::"l"(
          map),
      "r"(smem), "r"(at.dim), "r"(at.seqlen), "r"(at.head), "r"(at.batch)
      : "memory");
}
// Closes a group of this thread's stores.
__device__ __forceinline__ void tma_commit_group() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
// Waits until this thread's stores have read shared memory.
__device__ __forceinline__ void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
}
// Waits until they have been written too.
__device__ __forceinline__ void tma_wait_written() {
  asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}
__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}
// What this thread has written to shared memory is there for the copy engine and for wgmma, once
// they are told by a barrier; what they have read may be overwritten by them.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

}  // namespace tilewise::ptx
