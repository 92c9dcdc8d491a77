#include "cuda/sm90/tensor_map.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace tilewise::cuda::sm90 {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Asked of the driver once: the library does not link against it. Null when it has none.
Encode encode_function() {
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &found);
    if (error != cudaSuccess) (void)cudaGetLastError();
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess
               ? reinterpret_cast<Encode>(function)
               : nullptr;
  }();
  return encode;
}

}  // namespace

bool make_tensor_map(TensorMap* map, const TensorRef& x, DType dtype, int64_t seqlen, int64_t heads,
                     int64_t batch, int rows, int outer) {
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) &&
                alignof(TensorMap) >= alignof(CUtensorMap));
  const Encode encode = encode_function();
  if (encode == nullptr || !x.vectors) return false;
  const CUtensorMapDataType type =
      dtype == DType::kBf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const auto size = [](int64_t n) { return static_cast<cuuint64_t>(n); };
  const cuuint64_t sizes[] = {size(x.dim), size(seqlen), size(heads), size(batch)};
  const cuuint64_t strides[] = {size(2 * x.seqlen), size(2 * x.head), size(2 * x.batch)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(rows), static_cast<cuuint32_t>(outer), 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  return encode(reinterpret_cast<CUtensorMap*>(map), type, 4, x.data, sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace tilewise::cuda::sm90
