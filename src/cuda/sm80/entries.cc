#include "cuda/sm80/entries.h"

#include "core/planted.h"
#include "cuda/device.h"

namespace tilewise::cuda::sm80 {
namespace {

// A tensor whose rows do not all start at a multiple of 16 bytes, given that row 0 does; or
// kNumTensors.
int without_vectors(const AttentionProblem& p) {
  for (int t = 0; t < kNumTensors; ++t) {
    if (!p.backward() && t > static_cast<int>(TensorId::kO)) break;
    const Strides& s = p.strides[static_cast<size_t>(t)];
    if (s.seqlen % 8 != 0 || s.head % 8 != 0 || (!p.varlen && s.batch % 8 != 0)) return t;
  }
  return kNumTensors;
}

}  // namespace

Answer supports_vectors(const AttentionProblem& p) {
  if (p.head_dim % 8 != 0 || p.head_dim_v % 8 != 0) {
    return no("reads vectors of 16 bytes; a head_dim of {} and {} is not a multiple of them",
              p.head_dim, p.head_dim_v);
  }
  if (const int t = without_vectors(p); t < kNumTensors) {
    return no("reads vectors of 16 bytes; a stride of {} is not a multiple of them",
              name_of(static_cast<TensorId>(t)));
  }
  return yes();
}

Answer supports_common(const AttentionProblem& p, const Device& device, const Instance& instance) {
  if (device.kind != DeviceKind::kCuda) return no("tensors are not on a CUDA device");
  if (device.sm < 80) return no("needs sm_80, the device is sm_{}", device.sm);
  if (device.shared_bytes < instance.smem_bytes) {
    return no("needs {} bytes of shared memory, the device has {}", instance.smem_bytes,
              device.shared_bytes);
  }
  if (p.dtype != instance.dtype) {
    return no("dtype is {}, not {}", name_of(p.dtype), name_of(instance.dtype));
  }
  if (p.num_heads > 65535) return no("num_heads {} > 65535", p.num_heads);
  if (p.head_dim > instance.head_dim) {
    return no("head_dim {} > {}", p.head_dim, instance.head_dim);
  }
  if (p.head_dim_v > instance.head_dim) {
    return no("head_dim_v {} > {}", p.head_dim_v, instance.head_dim);
  }
  if (instance.variant == Variant::kFull && !p.mask.is_full()) {
    return no("has no causal or window mask");
  }
  if (instance.variant != Variant::kGeneral) {
    if (p.softcap > 0 || p.alibi || !(p.scale() > 0)) {
      return no("has no softcap, ALiBi or scale <= 0");
    }
    if (const Answer vectors = supports_vectors(p); !vectors.yes) return vectors;
  }
  if (p.longest_q() > kMostInt32 || p.longest_k() > kMostInt32) {
    return no("sequences of {} and {} > {}", p.longest_q(), p.longest_k(), kMostInt32);
  }
  if (p.varlen && (p.total_q > kMostInt32 || p.total_k > kMostInt32)) {
    return no("{} and {} tokens > {}", p.total_q, p.total_k, kMostInt32);
  }
  if (p.batch > kMostInt32) return no("batch {} > {}", p.batch, kMostInt32);
  return yes();
}

TensorRef tensor_ref(const AttentionProblem& p, TensorId id, const void* data) {
  const Strides& s = p.stride(id);
  TensorRef t;
  t.data = static_cast<uint16_t*>(const_cast<void*>(data));
  t.batch = p.varlen ? 0 : s.batch;
  t.seqlen = s.seqlen;
  t.head = s.head;
  t.dim = static_cast<int32_t>(p.extents(id).dim);
  t.vectors = reinterpret_cast<uintptr_t>(data) % 16 == 0 && t.dim % 8 == 0 && s.seqlen % 8 == 0 &&
              s.head % 8 == 0 && t.batch % 8 == 0;
  return t;
}

template <class Args>
void set_attention_params(AttentionParams& params, const AttentionProblem& p, const Args& args) {
  params.q = tensor_ref(p, TensorId::kQ, args.q);
  params.k = tensor_ref(p, TensorId::kK, args.k);
  params.v = tensor_ref(p, TensorId::kV, args.v);
  params.o = tensor_ref(p, TensorId::kO, args.o);
  params.lse = const_cast<float*>(args.lse);
  params.lse_head = p.varlen ? p.total_q : p.seqlen_q;
  params.lse_batch = p.varlen ? 0 : p.num_heads * p.seqlen_q;
  params.alibi_slopes = p.alibi ? args.alibi_slopes : nullptr;
  params.alibi_batch = args.alibi_batch_stride;
  params.cu_seqlens_q = args.cu_seqlens_q;
  params.cu_seqlens_k = args.cu_seqlens_k;
  params.seqlen_q = static_cast<int32_t>(p.longest_q());
  params.seqlen_k = static_cast<int32_t>(p.longest_k());
  params.mask = p.mask;  // a window beyond every key is none
  if (params.mask.window_left > kMostInt32) params.mask.window_left = kUnbounded;
  if (params.mask.window_right > kMostInt32) params.mask.window_right = kUnbounded;
  params.scale = static_cast<float>(p.scale());
  if (planted(Defect::kScaleOnePercent)) params.scale *= 1.01f;
  params.softcap = p.softcap;
  params.plain = p.softcap == 0 && !p.alibi && params.scale > 0;
  params.batch = static_cast<int32_t>(p.batch);
  params.num_heads = static_cast<int32_t>(p.num_heads);
  params.group = static_cast<int32_t>(p.group());
}
template void set_attention_params(AttentionParams&, const AttentionProblem&, const ForwardArgs&);
template void set_attention_params(AttentionParams&, const AttentionProblem&, const BackwardArgs&);

Status check_devices(const Device& device, void* stream) {
  int current = -1;
  const cudaError_t error = cudaGetDevice(&current);
  if (error != cudaSuccess) return {StatusCode::kDevice, cudaGetErrorString(error)};
  if (current != device.index) {
    return invalid_argument("the current CUDA device is {}, the plan's is {}", current,
                            device.index);
  }
  if (stream == nullptr || device_count() == 1) return {};
  const cudaError_t unknown = cudaStreamGetDevice(static_cast<cudaStream_t>(stream), &current);
  if (unknown != cudaSuccess) {
    (void)cudaGetLastError();  // the caller gets it from us, once
    return {StatusCode::kDevice, format("stream: {}", cudaGetErrorString(unknown))};
  }
  if (current != device.index) {
    return invalid_argument("stream is of CUDA device {}, the plan's is {}", current, device.index);
  }
  return {};
}

Status status_of(const Plan& plan, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return {StatusCode::kDevice, format("{}: {}", plan.entry->name, cudaGetErrorString(error))};
}

}  // namespace tilewise::cuda::sm80
