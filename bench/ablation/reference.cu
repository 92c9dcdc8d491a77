#include "bench/ablation/reference.h"
#include "core/numeric.h"
#include "core/random.h"

namespace tilewise::ablation {
namespace {

__device__ float float_of(uint16_t x, DType dtype) {
  return dtype == DType::kBf16 ? float_of_bf16(x) : float_of_fp16(x);
}

__global__ void fill_normal(uint16_t* data, int64_t count, DType dtype, uint64_t seed) {
  const PhiloxStream random(seed);
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const float u = (static_cast<float>(random.word(2 * i) >> 8) + 0.5f) * 0x1p-24f;
    const float v = static_cast<float>(random.word(2 * i + 1) >> 8) * 0x1p-24f;
    const float x = sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
    data[i] = dtype == DType::kBf16 ? bf16_of_float(x) : fp16_of_float(x);
  }
}

// A block for each (query, head, batch). scores: seqlen_k floats.
__global__ void attend(cuda::ForwardParams p, DType dtype, Reference out) {
  extern __shared__ float scores[];
  const int query = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int64_t batch = blockIdx.z;
  const auto row = [&](const cuda::TensorRef& x, int64_t token) {
    return x.data + batch * x.batch + token * x.seqlen + head * x.head;
  };
  const uint16_t* q = row(p.q, query);
  const BasicLengths<int> lengths = {p.seqlen_q, p.seqlen_k};
  for (int key = static_cast<int>(threadIdx.x); key < p.seqlen_k; key += blockDim.x) {
    float s = 0.0f;
    for (int x = 0; x < p.q.dim; ++x) {
      s += float_of(q[x], dtype) * float_of(row(p.k, key)[x], dtype);
    }
    scores[key] = p.mask.visible(query, key, lengths) ? p.scale * s : -__builtin_inff();
  }
  __syncthreads();
  float most = -__builtin_inff(), sum = 0.0f;
  for (int key = 0; key < p.seqlen_k; ++key) most = fmaxf(most, scores[key]);
  for (int key = 0; key < p.seqlen_k; ++key) sum += expf(scores[key] - most);
  const int64_t token = (batch * p.seqlen_q + query) * p.num_heads + head;
  for (int x = static_cast<int>(threadIdx.x); x < p.v.dim; x += blockDim.x) {
    float o = 0.0f, magnitude = 0.0f;
    for (int key = 0; key < p.seqlen_k; ++key) {
      const float weight = expf(scores[key] - most) / sum, v = float_of(row(p.v, key)[x], dtype);
      o += weight * v;
      magnitude += weight * fabsf(v);
    }
    out.o[token * p.v.dim + x] = o;
    out.o_magnitude[token * p.v.dim + x] = magnitude;
  }
  if (threadIdx.x == 0) {
    out.lse[(batch * p.num_heads + head) * p.seqlen_q + query] = most + logf(sum);
  }
}

}  // namespace

cudaError_t fill(uint16_t* data, int64_t count, DType dtype, uint64_t seed) {
  fill_normal<<<1024, 256>>>(data, count, dtype, seed);
  return cudaGetLastError();
}

cudaError_t compute_reference(const cuda::ForwardParams& p, DType dtype, Reference out) {
  const dim3 grid(static_cast<unsigned>(p.seqlen_q), static_cast<unsigned>(p.num_heads),
                  static_cast<unsigned>(p.batch));
  attend<<<grid, 128, static_cast<size_t>(p.seqlen_k) * sizeof(float)>>>(p, dtype, out);
  return cudaGetLastError();
}

}  // namespace tilewise::ablation
