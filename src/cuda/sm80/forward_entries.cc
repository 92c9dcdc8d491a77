// The sm_80 forward's entries: what they compute, how a problem is divided, the launch.
#include <algorithm>

#include "cuda/sm80/entries.h"
#include "cuda/sm80/launch.h"
#include "cuda/tile_config.h"

namespace tilewise::cuda::sm80 {
namespace {

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

template <DType kType, int kHeadDim, Variant kVariant>
Answer forward_supports(const AttentionProblem& p, const Device& device) {
  constexpr TileConfig kTile = forward_tile_sm80(kHeadDim, kVariant);
  if (p.backward()) return no("computes the forward only");
  return supports_common(p, device, {kType, kHeadDim, kVariant, kTile.forward_smem_bytes()});
}

// Pieces of the keys, so that short queries fill the device: as many as it has room for, of 256
// keys at least, and whole steps.
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
  const int64_t splits = std::clamp<int64_t>(std::min(wanted, steps * kTile.block_n / 256), 1, 256);
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

ForwardParams params_of(const Plan& plan, const ForwardArgs& args, const TileConfig& tile) {
  const AttentionProblem& p = plan.problem;
  ForwardParams params;
  set_attention_params(params, p, args);
  params.pack = pack_of(p, tile);
  params.m_blocks = static_cast<int32_t>(
      std::max<int64_t>(1, ceil_div(p.longest_q() * params.pack, tile.block_m)));
  params.num_splits = plan.shape.num_splits;
  params.partial_rows = p.num_rows();
  params.partial_queries = p.varlen ? p.total_q : p.seqlen_q;
  params.partial_o = static_cast<float*>(args.workspace);
  if (params.num_splits > 1) {
    params.partial_lse = params.partial_o + params.num_splits * params.partial_rows * p.head_dim_v;
  }
  return params;
}

template <DType kType, int kHeadDim, Variant kVariant>
Status run_forward_kernel(const Plan& plan, const ForwardArgs& args) {
  if (Status s = check_devices(plan.device, args.stream); !s.ok()) return s;
  const ForwardParams params = params_of(plan, args, forward_tile_sm80(kHeadDim, kVariant));
  const auto stream = static_cast<cudaStream_t>(args.stream);
  const bool vectors = params.q.vectors && params.k.vectors && params.v.vectors && params.o.vectors;
  cudaError_t error = kVariant == Variant::kGeneral || vectors
                          ? launch_forward<kType, kHeadDim, kVariant>(params, stream)
                          : launch_forward<kType, kHeadDim, Variant::kGeneral>(params, stream);
  if (error == cudaSuccess && params.num_splits > 1) {
    error = launch_combine<kType>(params, stream);
  }
  return status_of(plan, error);
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

template <DType kType, int kHeadDim>
Status run_general_forward(const Plan& plan, const ForwardArgs& args) {
  return run_forward_kernel<kType, kHeadDim, Variant::kGeneral>(plan, args);
}
#define TILEWISE_TYPES(d)                                                                \
  template Status run_general_forward<DType::kBf16, d>(const Plan&, const ForwardArgs&); \
  template Status run_general_forward<DType::kFp16, d>(const Plan&, const ForwardArgs&)
TILEWISE_TYPES(64);
TILEWISE_TYPES(96);
TILEWISE_TYPES(128);
TILEWISE_TYPES(192);
TILEWISE_TYPES(256);
#undef TILEWISE_TYPES

std::vector<const KernelEntry*> forward_entries() {
#define TILEWISE_TYPES(d, name, variant)                                                   \
  forward_entry<DType::kBf16, d, Variant::variant>("sm80.forward.d" #d "." #name ".bf16"), \
      forward_entry<DType::kFp16, d, Variant::variant>("sm80.forward.d" #d "." #name ".fp16")
#define TILEWISE_VARIANTS(d)                                          \
  TILEWISE_TYPES(d, full, kFull), TILEWISE_TYPES(d, banded, kBanded), \
      TILEWISE_TYPES(d, general, kGeneral)
  static const KernelEntry list[] = {TILEWISE_VARIANTS(64), TILEWISE_VARIANTS(96),
                                     TILEWISE_VARIANTS(128), TILEWISE_VARIANTS(192),
                                     TILEWISE_VARIANTS(256)};
#undef TILEWISE_VARIANTS
#undef TILEWISE_TYPES
  std::vector<const KernelEntry*> all;
  for (const KernelEntry& entry : list) all.push_back(&entry);
  return all;
}

}  // namespace tilewise::cuda::sm80
