// The sm_80 kernels' entries: what they compute, how a problem is divided, the launch.
#include "cuda/entries.h"

#include <algorithm>

#include "core/planted.h"
#include "cuda/sm80/launch.h"
#include "cuda/tile_config.h"

namespace tilewise::cuda {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The largest int64_t when the product does not fit.
int64_t times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

// Query heads that share a block's rows: those of a group when together they fit into one block, so
// that K and V are read once for all of them.
int32_t pack_of(const AttentionProblem& p, const TileConfig& tile) {
  return p.group() > 1 && p.longest_q() * p.group() <= tile.block_m
             ? static_cast<int32_t>(p.group())
             : 1;
}

int64_t thread_blocks(const AttentionProblem& p, const TileConfig& tile) {
  const int32_t pack = pack_of(p, tile);
  const int64_t m_blocks = std::max<int64_t>(1, ceil_div(p.longest_q() * pack, tile.block_m));
  return times(times(m_blocks, p.num_heads / pack), p.batch);
}

// Do the strides keep every row at a multiple of 16 bytes, given that row 0 is?
bool has_vectors(const AttentionProblem& p) {
  for (const TensorId t : {TensorId::kQ, TensorId::kK, TensorId::kV, TensorId::kO}) {
    const Strides& s = p.stride(t);
    if (s.seqlen % 8 != 0 || s.head % 8 != 0 || (!p.varlen && s.batch % 8 != 0)) return false;
  }
  return true;
}

template <DType kType, int kHeadDim, Variant kVariant>
Answer forward_supports(const AttentionProblem& p, const Device& device) {
  constexpr TileConfig kTile = forward_tile_sm80(kHeadDim, kVariant);
  if (device.kind != DeviceKind::kCuda) return no("tensors are not on a CUDA device");
  if (p.backward()) return no("computes the forward only");
  if (device.sm < 80) return no("needs sm_80, the device is sm_{}", device.sm);
  if (device.shared_bytes < kTile.forward_smem_bytes()) {
    return no("needs {} bytes of shared memory, the device has {}", kTile.forward_smem_bytes(),
              device.shared_bytes);
  }
  if (p.dtype != kType) return no("dtype is {}, not {}", name_of(p.dtype), name_of(kType));
  if (p.num_heads > 65535) return no("num_heads {} > 65535", p.num_heads);
  if (p.head_dim > kHeadDim) return no("head_dim {} > {}", p.head_dim, kHeadDim);
  if (p.head_dim_v > kHeadDim) return no("head_dim_v {} > {}", p.head_dim_v, kHeadDim);
  if (kTile.variant == Variant::kFull && !p.mask.is_full())
    return no("has no causal or window mask");
  if (!kTile.general()) {
    if (p.softcap > 0 || p.alibi || !(p.scale() > 0)) {
      return no("has no softcap, ALiBi or scale <= 0");
    }
    if (!has_vectors(p)) return no("reads vectors of 16 bytes; a stride is not a multiple of them");
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

// Pieces of the keys, so that short queries fill the device: as many as it has room for, of four
// steps at least, and whole steps.
template <int kHeadDim, Variant kVariant>
Status forward_shape(Plan& plan, const PlanOptions&) {
  constexpr TileConfig kTile = forward_tile_sm80(kHeadDim, kVariant);
  const AttentionProblem& p = plan.problem;
  plan.shape = {};
  plan.shape.block_rows = kTile.block_m;
  const int64_t blocks = thread_blocks(p, kTile);
  const int64_t steps = ceil_div(p.longest_k(), kTile.block_n);
  const int64_t room = int64_t{plan.device.num_sms} * kTile.blocks_per_sm;
  const int64_t wanted = blocks == 0 ? 1 : room / blocks;
  const int64_t splits = std::clamp<int64_t>(std::min(wanted, steps / 4), 1, 256);
  plan.shape.num_splits =
      static_cast<int32_t>(ceil_div(steps, ceil_div(std::max<int64_t>(1, steps), splits)));
  plan.shape.num_splits = std::max(1, plan.shape.num_splits);
  plan.shape.num_tasks = times(blocks, plan.shape.num_splits);
  if (plan.shape.num_splits == 1) return {};
  const int64_t row_bytes = static_cast<int64_t>(sizeof(float)) * (p.head_dim_v + 1);
  plan.workspace_bytes = times(times(plan.shape.num_splits, p.num_rows()), row_bytes);
  if (plan.workspace_bytes == INT64_MAX) {
    return {StatusCode::kOverflow,
            format("partial results of {} splits overflow 64 bits", plan.shape.num_splits)};
  }
  return {};
}

TensorRef tensor(const AttentionProblem& p, TensorId id, const void* data) {
  const Strides& s = p.stride(id);
  const Extents e = p.extents(id);
  TensorRef t;
  t.data = static_cast<uint16_t*>(const_cast<void*>(data));
  t.batch = p.varlen ? 0 : s.batch;
  t.seqlen = s.seqlen;
  t.head = s.head;
  t.dim = static_cast<int32_t>(e.dim);
  t.vectors = reinterpret_cast<uintptr_t>(data) % 16 == 0 && s.seqlen % 8 == 0 && s.head % 8 == 0 &&
              t.batch % 8 == 0;
  return t;
}

ForwardParams params_of(const Plan& plan, const ForwardArgs& args, const TileConfig& tile) {
  const AttentionProblem& p = plan.problem;
  ForwardParams params;
  params.q = tensor(p, TensorId::kQ, args.q);
  params.k = tensor(p, TensorId::kK, args.k);
  params.v = tensor(p, TensorId::kV, args.v);
  params.o = tensor(p, TensorId::kO, args.o);
  params.lse = args.lse;
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
  params.pack = pack_of(p, tile);
  params.m_blocks = static_cast<int32_t>(
      std::max<int64_t>(1, ceil_div(p.longest_q() * params.pack, tile.block_m)));
  params.num_splits = plan.shape.num_splits;
  params.split_blocks =
      static_cast<int32_t>(ceil_div(ceil_div(p.longest_k(), tile.block_n), plan.shape.num_splits));
  params.partial_rows = p.num_rows();
  params.partial_o = static_cast<float*>(args.workspace);
  if (params.num_splits > 1) {
    params.partial_lse = params.partial_o + params.num_splits * params.partial_rows * p.head_dim_v;
  }
  return params;
}

Status check_current_device(const Device& device) {
  int current = -1;
  const cudaError_t error = cudaGetDevice(&current);
  if (error != cudaSuccess) return {StatusCode::kDevice, cudaGetErrorString(error)};
  if (current != device.index) {
    return invalid_argument("the current CUDA device is {}, the plan's is {}", current,
                            device.index);
  }
  return {};
}

template <DType kType, int kHeadDim, Variant kVariant>
Status run_forward_kernel(const Plan& plan, const ForwardArgs& args) {
  if (Status s = check_current_device(plan.device); !s.ok()) return s;
  const ForwardParams params = params_of(plan, args, forward_tile_sm80(kHeadDim, kVariant));
  const auto stream = static_cast<cudaStream_t>(args.stream);
  const bool vectors = params.q.vectors && params.k.vectors && params.v.vectors && params.o.vectors;
  cudaError_t error =
      kVariant == Variant::kGeneral || vectors
          ? sm80::launch_forward<kType, kHeadDim, kVariant>(params, stream)
          : sm80::launch_forward<kType, kHeadDim, Variant::kGeneral>(params, stream);
  if (error == cudaSuccess && params.num_splits > 1) {
    error = sm80::launch_combine<kType>(params, stream);
  }
  if (error == cudaSuccess) return {};
  return {StatusCode::kDevice, format("{}: {}", plan.entry->name, cudaGetErrorString(error))};
}

template <DType kType, int kHeadDim, Variant kVariant>
KernelEntry forward_entry(std::string_view name) {
  return {name,
          "mma.sync, split-Q, keys from last to first",
          forward_supports<kType, kHeadDim, kVariant>,
          forward_shape<kHeadDim, kVariant>,
          run_forward_kernel<kType, kHeadDim, kVariant>,
          nullptr};
}

}  // namespace

std::vector<const KernelEntry*> entries() {
#define TILEWISE_VARIANT(d, name, variant)                                                 \
  forward_entry<DType::kBf16, d, Variant::variant>("sm80.forward.d" #d "." #name ".bf16"), \
      forward_entry<DType::kFp16, d, Variant::variant>("sm80.forward.d" #d "." #name ".fp16")
#define TILEWISE_FORWARD(d)                                               \
  TILEWISE_VARIANT(d, full, kFull), TILEWISE_VARIANT(d, banded, kBanded), \
      TILEWISE_VARIANT(d, general, kGeneral)
  static const KernelEntry list[] = {TILEWISE_FORWARD(64), TILEWISE_FORWARD(96),
                                     TILEWISE_FORWARD(128), TILEWISE_FORWARD(192),
                                     TILEWISE_FORWARD(256)};
#undef TILEWISE_FORWARD
#undef TILEWISE_VARIANT
  std::vector<const KernelEntry*> all;
  for (const KernelEntry& entry : list) all.push_back(&entry);
  return all;
}

}  // namespace tilewise::cuda
