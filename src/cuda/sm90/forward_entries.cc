// The sm_90 forward's entries: what they compute, how a problem is divided, the launch.
#include <algorithm>

#include "cuda/sm80/entries.h"
#include "cuda/sm90/entries.h"
#include "cuda/sm90/forward_tile.h"
#include "cuda/sm90/launch.h"
#include "cuda/sm90/tensor_map.h"

namespace tilewise::cuda::sm90 {
namespace {

using sm80::ceil_div;
using sm80::times;

constexpr int64_t kMostTiles = 1 << 29;          // twice a tile's index is an int
constexpr int64_t kFewKeys = 128, kLong = 4096;  // as measured: docs/tuning/forward_sm90.md

// Varlen: as if all sequences were as long as the longest, so that the choice of a kernel follows
// from shapes.
int64_t tiles_of(const AttentionProblem& p, const ForwardTile& tile) {
  return times(times(ceil_div(p.longest_q(), tile.block_m()), p.num_heads), p.batch);
}
// Varlen: places for tiles, of which some are empty (first_place() in forward_place.cuh).
int64_t places_of(const AttentionProblem& p, const ForwardTile& tile) {
  if (!p.varlen) return tiles_of(p, tile);
  return times(p.total_q / tile.block_m() + p.batch, p.num_heads);
}

// What sm_80's kernels compute faster so far: they begin sooner, let heads of a group share K and
// V, and split keys, where queries are few.
Answer supports_shape(const AttentionProblem& p, const Device& device, const ForwardTile& tile) {
  if (p.longest_k() <= kFewKeys) return no("{} keys are few", p.longest_k());
  if (tile.banded() && !tile.has_left_end()) {
    if (p.mask.window_left != kUnbounded) return no("has no window's left end");
    if (std::min(p.seqlen_q, p.seqlen_k) < kLong) return no("is for {} tokens and more", kLong);
  }
  const int64_t tiles = tiles_of(p, tile);
  const int64_t most = p.varlen ? kMostTiles / 2 : kMostTiles;  // twice the places at most
  if (tiles > most) return no("{} blocks of queries > {}", tiles, most);
  if (p.group() > 1 && p.longest_q() * p.group() <= tile.block_m()) {
    return no("queries of a group of heads do not share a block; {} of {} heads are few",
              p.longest_q(), p.group());
  }
  const int64_t steps = ceil_div(p.longest_k(), tile.block_n);
  if (2 * tiles <= device.num_sms && steps >= 16) {
    return no("keys are not split; {} blocks of queries are few for {} SMs", tiles, device.num_sms);
  }
  return yes();
}

template <DType kType, int kHeadDim, Variant kVariant, int kRows>
Answer forward_supports(const AttentionProblem& p, const Device& device) {
  constexpr ForwardTile kTile = forward_tile(kHeadDim, kVariant, kRows);
  if (p.backward()) return no("computes the forward only");
  if (device.kind == DeviceKind::kCuda && device.sm != 90) {
    return no("needs sm_90, the device is sm_{}", device.sm);
  }
  if (!kTile.general()) {
    if (p.varlen) return no("has no sequences of different lengths (varlen)");
  } else if (const Answer vectors = sm80::supports_vectors(p); !vectors.yes) {
    return vectors;
  } else if (!p.varlen && p.softcap == 0 && !p.alibi && p.scale() > 0) {
    return no("is for varlen, softcap, ALiBi and scale <= 0");
  }
  Answer common = sm80::supports_common(p, device, {kType, kHeadDim, kVariant, kTile.smem_bytes()});
  return common.yes ? supports_shape(p, device, kTile) : common;
}

// The workspace has the counter of tiles and a link for each; a tile for each SM needs neither.
template <int kHeadDim, Variant kVariant, int kRows>
Status forward_shape(Plan& plan, const PlanOptions&) {
  constexpr ForwardTile kTile = forward_tile(kHeadDim, kVariant, kRows);
  const int64_t tiles = places_of(plan.problem, kTile);
  plan.shape = {};
  plan.shape.block_rows = kTile.block_m();
  plan.shape.num_tasks = tiles;
  const bool one_each = tiles <= plan.device.num_sms;
  plan.workspace_bytes = one_each ? 0 : (1 + tiles) * static_cast<int64_t>(sizeof(int32_t));
  return {};
}

// Heads whose K and V fit into about half of the L2 cache, whole groups of them.
int32_t section_heads(const AttentionProblem& p) {
  constexpr int64_t kBytes = 24 << 20;
  const int64_t of_head = p.seqlen_k * (p.head_dim + p.head_dim_v) * 2;
  const int64_t heads = p.group() * std::max<int64_t>(1, kBytes / of_head);
  return static_cast<int32_t>(std::min(heads, p.batch * p.num_heads));
}

TileForwardParams params_of(const Plan& plan, const ForwardArgs& args, const ForwardTile& tile) {
  const AttentionProblem& p = plan.problem;
  TileForwardParams params;
  sm80::set_attention_params(params, p, args);
  params.m_blocks = static_cast<int32_t>(ceil_div(p.longest_q(), tile.block_m()));
  params.num_tiles = static_cast<int32_t>(plan.shape.num_tasks);
  if (!tile.general()) {
    params.section_heads = tile.banded() ? section_heads(p) : 1;
    params.last_section = params.batch * params.num_heads / params.section_heads - 1;
  }
  if (plan.workspace_bytes > 0) {
    params.next_tile = static_cast<int32_t*>(args.workspace);
    params.redo_links = params.next_tile + 1;
  }
  return params;
}

bool make_tensor_maps(TileForwardParams& params, const AttentionProblem& p,
                      const ForwardTile& tile) {
  const auto make = [&](TensorMap* map, TensorRef x, int64_t seqlen, int64_t total, int64_t heads,
                        int rows) {
    if (!p.varlen) return make_tensor_map(map, x, p.dtype, seqlen, heads, p.batch, rows);
    x.batch = x.seqlen;  // steps nowhere, but 0 may be refused
    return make_tensor_map(map, x, p.dtype, total, heads, 1, rows);
  };
  const int64_t kv_heads = p.num_heads / p.group();
  return make(&params.q_map, params.q, p.seqlen_q, p.total_q, p.num_heads, 64) &&
         make(&params.k_map, params.k, p.seqlen_k, p.total_k, kv_heads, tile.block_n) &&
         make(&params.v_map, params.v, p.seqlen_k, p.total_k, kv_heads, tile.block_n) &&
         make(&params.o_map, params.o, p.seqlen_q, p.total_q, p.num_heads, 64);
}

template <DType kType, int kHeadDim, Variant kVariant, int kRows>
Status run_forward_kernel(const Plan& plan, const ForwardArgs& args) {
  constexpr ForwardTile kTile = forward_tile(kHeadDim, kVariant, kRows);
  if (Status s = sm80::check_devices(plan.device, args.stream); !s.ok()) return s;
  TileForwardParams params = params_of(plan, args, kTile);
  if (!make_tensor_maps(params, plan.problem, kTile)) {
    return sm80::run_general_forward<kType, kHeadDim>(plan, args);
  }
  const auto stream = static_cast<cudaStream_t>(args.stream);
  cudaError_t error = cudaSuccess;
  if (params.next_tile != nullptr) {
    error = cudaMemsetAsync(params.next_tile, 0, sizeof(int32_t), stream);
    if (error != cudaSuccess) (void)cudaGetLastError();
  }
  if (error == cudaSuccess) {
    const int blocks = std::min(params.num_tiles, plan.device.num_sms);
    error = launch_forward<kType, kHeadDim, kVariant, kRows>(params, blocks, stream);
  }
  return sm80::status_of(plan, error);
}

template <DType kType, int kHeadDim, Variant kVariant, int kRows>
KernelEntry forward_entry(std::string_view name) {
  return {name,
          "wgmma, TMA, roles beside each other, references that hardly move",
          forward_supports<kType, kHeadDim, kVariant, kRows>,
          forward_shape<kHeadDim, kVariant, kRows>,
          run_forward_kernel<kType, kHeadDim, kVariant, kRows>,
          nullptr};
}

}  // namespace

std::vector<const KernelEntry*> forward_entries() {
#define TILEWISE_TYPES(d, name, variant, rows)                                                   \
  forward_entry<DType::kBf16, d, Variant::variant, rows>("sm90.forward.d" #d "." #name ".bf16"), \
      forward_entry<DType::kFp16, d, Variant::variant, rows>("sm90.forward.d" #d "." #name       \
                                                             ".fp16")
#define TILEWISE_VARIANTS(d) \
  TILEWISE_TYPES(d, full, kFull, 128), TILEWISE_TYPES(d, banded, kBanded, 128)
  static const KernelEntry list[] = {TILEWISE_TYPES(64, full, kFull, 192),
                                     TILEWISE_TYPES(64, long, kBanded, 192),
                                     TILEWISE_TYPES(64, banded, kBanded, 128),
                                     TILEWISE_TYPES(64, general, kGeneral, 128),
                                     TILEWISE_VARIANTS(96),
                                     TILEWISE_VARIANTS(128),
                                     TILEWISE_TYPES(128, general, kGeneral, 128),
                                     TILEWISE_VARIANTS(192),
                                     TILEWISE_VARIANTS(256)};
#undef TILEWISE_VARIANTS
#undef TILEWISE_TYPES
  std::vector<const KernelEntry*> all;
  for (const KernelEntry& entry : list) all.push_back(&entry);
  return all;
}

}  // namespace tilewise::cuda::sm90
