// The sm_90 backward's entries: what they compute, how a problem is divided, the launches.
#include <algorithm>
#include <bit>

#include "cuda/sm80/entries.h"
#include "cuda/sm80/launch.h"
#include "cuda/sm90/backward_tile.h"
#include "cuda/sm90/entries.h"
#include "cuda/sm90/launch.h"
#include "cuda/sm90/tensor_map.h"

namespace tilewise::cuda::sm90 {
namespace {

using sm80::ceil_div;
using sm80::times;

constexpr int64_t kMostTiles = 1 << 29;  // a tile's index and the tiles of all thread blocks
constexpr double kLeastScale = 0x1p-60;  // lse / scale must not overflow

int64_t tiles_of(const AttentionProblem& p) {
  return times(times(ceil_div(p.seqlen_k, BackwardTile::block_n), p.num_heads_kv), p.batch);
}

template <DType kType, int kHeadDim, Variant kVariant>
Answer backward_supports(const AttentionProblem& p, const Device& device) {
  constexpr BackwardTile kTile = backward_tile(kHeadDim, kVariant);
  if (!p.backward()) return no("computes the backward only");
  if (device.kind == DeviceKind::kCuda && device.sm != 90) {
    return no("needs sm_90, the device is sm_{}", device.sm);
  }
  if (p.varlen) return no("has no sequences of different lengths (varlen)");
  Answer common = sm80::supports_common(p, device, {kType, kHeadDim, kVariant, kTile.smem_bytes()});
  if (!common.yes) return common;
  if (p.scale() < kLeastScale) return no("divides by the scale; {} is too small", p.scale());
  const int64_t tiles = tiles_of(p);
  if (tiles > kMostTiles) return no("{} blocks of keys > {}", tiles, kMostTiles);
  return yes();
}

template <int kHeadDim>
Status backward_shape(Plan& plan, const PlanOptions&) {
  plan.shape = {};
  plan.shape.block_rows = BackwardTile::block_n;
  plan.shape.num_tasks = tiles_of(plan.problem);
  return sm80::set_workspace_bytes(plan, sm80::BackwardWorkspace(plan.problem, kHeadDim, true));
}

// Kv heads whose Q, dO and sums of dQ fit into most of the L2 cache: a power of two, so that
// sections are alike.
int32_t section_heads(const AttentionProblem& p, int head_dim) {
  constexpr int64_t kBytes = 40 << 20;
  const int64_t of_head =
      p.group() * p.seqlen_q * (2 * p.head_dim + 2 * p.head_dim_v + 4 * head_dim);
  const auto heads =
      static_cast<uint64_t>(std::max<int64_t>(1, kBytes / std::max<int64_t>(1, of_head)));
  return static_cast<int32_t>(
      std::min(static_cast<int64_t>(std::bit_floor(heads)), p.batch * p.num_heads_kv));
}

bool make_tensor_maps(TileBackwardParams& params, const AttentionProblem& p, int block_m) {
  const auto rows_of = [&](TensorMap* map, const TensorRef& x, int rows) {
    return make_tensor_map(map, x, p.dtype, p.seqlen_q, p.num_heads, p.batch, rows);
  };
  const auto keys_of = [&](TensorMap* map, const TensorRef& x, int rows) {
    return make_tensor_map(map, x, p.dtype, p.seqlen_k, p.num_heads_kv, p.batch, rows);
  };
  return rows_of(&params.q_map, params.q, block_m) &&
         rows_of(&params.do_map, params.do_, block_m) &&
         keys_of(&params.k_map, params.k, BackwardTile::block_n) &&
         keys_of(&params.v_map, params.v, BackwardTile::block_n) &&
         keys_of(&params.dk_map, params.dk, 64) && keys_of(&params.dv_map, params.dv, 64);
}

template <DType kType, int kHeadDim, Variant kVariant>
Status run_backward_kernel(const Plan& plan, const BackwardArgs& args) {
  constexpr BackwardTile kTile = backward_tile(kHeadDim, kVariant);
  const AttentionProblem& p = plan.problem;
  if (Status s = sm80::check_devices(plan.device, args.stream); !s.ok()) return s;
  TileBackwardParams params;
  sm80::set_backward_params(params, p, args, sm80::BackwardWorkspace(p, kHeadDim, true));
  if (!make_tensor_maps(params, p, kTile.block_m)) {
    return sm80::run_general_backward<kType, kHeadDim>(plan, args);
  }
  params.n_blocks = static_cast<int32_t>(ceil_div(p.seqlen_k, kTile.block_n));
  params.num_tiles = static_cast<int32_t>(plan.shape.num_tasks);
  params.section_heads = kTile.banded() ? section_heads(p, kHeadDim) : 1;
  params.last_section = static_cast<int32_t>(p.batch * p.num_heads_kv) / params.section_heads - 1;
  const auto stream = static_cast<cudaStream_t>(args.stream);
  cudaError_t error = sm80::launch_delta<kType>(params, kHeadDim, stream);
  if (error == cudaSuccess) {
    const int blocks = std::min(params.num_tiles, plan.device.num_sms);
    error = launch_backward<kType, kHeadDim, kVariant>(params, blocks, stream);
  }
  if (error == cudaSuccess) error = sm80::launch_convert_dq<kType, kHeadDim>(params, stream);
  return sm80::status_of(plan, error);
}

template <DType kType, int kHeadDim, Variant kVariant>
KernelEntry backward_entry(std::string_view name) {
  return {name,
          "wgmma, TMA, roles beside each other, fp32 sums of dq by the copy engine",
          backward_supports<kType, kHeadDim, kVariant>,
          backward_shape<kHeadDim>,
          nullptr,
          run_backward_kernel<kType, kHeadDim, kVariant>};
}

}  // namespace

std::vector<const KernelEntry*> backward_entries() {
#define TILEWISE_TYPES(d, name, variant)                                                     \
  backward_entry<DType::kBf16, d, Variant::variant>("sm90.backward.d" #d "." #name ".bf16"), \
      backward_entry<DType::kFp16, d, Variant::variant>("sm90.backward.d" #d "." #name ".fp16")
#define TILEWISE_VARIANTS(d) TILEWISE_TYPES(d, full, kFull), TILEWISE_TYPES(d, banded, kBanded)
  static const KernelEntry list[] = {TILEWISE_VARIANTS(64), TILEWISE_VARIANTS(128)};
#undef TILEWISE_VARIANTS
#undef TILEWISE_TYPES
  std::vector<const KernelEntry*> all;
  for (const KernelEntry& entry : list) all.push_back(&entry);
  return all;
}

}  // namespace tilewise::cuda::sm90
