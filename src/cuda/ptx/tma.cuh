// Tiles of tensors and runs of bytes between global and shared memory, moved by the copy engine
// (PTX ISA 9.7.9, cp.async.bulk.tensor, cp.async.bulk, cp.reduce.async.bulk). One thread asks for a
// whole tile; the tensor's description, made by the host, knows strides, sizes, the tile's box and
// its swizzle. sm_90.
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
// `bytes` of contiguous memory, a multiple of 16 as both addresses are.
__device__ __forceinline__ void bulk_load(uint32_t smem, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::
          "r"(smem),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Adds contiguous values to global memory, element by element; grouped with the stores.
__device__ __forceinline__ void bulk_add(float* to, uint32_t smem, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(to),
      "r"(smem), "r"(bytes)
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

// The same of global memory, between this thread's ordinary accesses and the copy engine's.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
}

}  // namespace tilewise::ptx
