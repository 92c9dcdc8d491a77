// The sm_90 forward's entries: what they compute, how a problem is divided, the launch.
#include <algorithm>
#include <utility>

#include "cuda/sm80/entries.h"
#include "cuda/sm80/launch.h"
#include "cuda/sm90/entries.h"
#include "cuda/sm90/forward_tile.h"
#include "cuda/sm90/launch.h"
#include "cuda/sm90/tensor_map.h"

namespace tilewise::cuda::sm90 {
namespace {

using sm80::ceil_div;
using sm80::times;

constexpr int64_t kMostTiles = 1 << 29;  // twice a tile's index is an int
// As measured: docs/tuning/forward_sm90.md.
constexpr int64_t kFewKeys = 128, kFewKeysVarlen = 512, kLong = 4096;

// How few queries fill the device: heads of a group share a tile's rows, and keys are split.
struct Division {
  int32_t pack = 1, splits = 1;
};

int64_t steps_of(const AttentionProblem& p, const ForwardTile& tile) {
  return ceil_div(p.longest_k(), tile.block_n);
}
int32_t pack_of(const AttentionProblem& p, const ForwardTile& tile) {
  const bool whole = 64 % p.group() == 0;  // so many queries are a box of the copy engine
  return tile.general() && whole && p.longest_q() * p.group() <= tile.block_m()
             ? static_cast<int32_t>(p.group())
             : 1;
}
// Varlen: as if all sequences were as long as the longest, so that the choice of a kernel follows
// from shapes.
int64_t tiles_of(const AttentionProblem& p, const ForwardTile& tile) {
  const int32_t pack = pack_of(p, tile);
  const int64_t blocks = ceil_div(p.longest_q() * pack, tile.block_m());
  return times(times(blocks, p.num_heads / pack), p.batch);
}
// Varlen: places for tiles, of which some are empty (first_place() in forward_place.cuh).
int64_t places_of(const AttentionProblem& p, const ForwardTile& tile) {
  if (!p.varlen) return tiles_of(p, tile);
  const int32_t pack = pack_of(p, tile);
  return times(p.total_q / (tile.block_m() / pack) + p.batch, p.num_heads / pack);
}
// Are so few tiles worth splitting their keys? A guess: docs/tuning/forward_sm90.md.
bool few_tiles(const AttentionProblem& p, const Device& device, const ForwardTile& tile) {
  const int64_t tiles = tiles_of(p, tile);
  return tiles > 0 && tiles <= device.num_sms / 2 && steps_of(p, tile) >= 16;
}
// Pieces of 256 keys at least, whole steps, none of them empty.
Division division_of(const AttentionProblem& p, const Device& device, const ForwardTile& tile) {
  Division division;
  division.pack = pack_of(p, tile);
  if (!tile.general() || !few_tiles(p, device, tile)) return division;
  const int64_t steps = steps_of(p, tile), room = device.num_sms / tiles_of(p, tile);
  const int64_t splits = std::clamp<int64_t>(std::min(room, steps * tile.block_n / 256), 1, 256);
  division.splits = static_cast<int32_t>(ceil_div(steps, ceil_div(steps, splits)));
  return division;
}

// What sm_80's kernels compute faster so far: they begin sooner, let heads of a group share K and
// V, and split keys, where queries are few.
Answer supports_shape(const AttentionProblem& p, const Device& device, const ForwardTile& tile) {
  const int64_t few = p.varlen && tile.head_dim == 64 ? kFewKeysVarlen : kFewKeys;
  if (p.longest_k() <= few) return no("{} keys are few", p.longest_k());
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
  if (few_tiles(p, device, tile)) {
    return no("keys are not split; {} blocks of queries are few for {} SMs", tiles, device.num_sms);
  }
  return yes();
}

template <DType kType, ForwardTile kTile>
Answer supports_device(const AttentionProblem& p, const Device& device) {
  if (p.backward()) return no("computes the forward only");
  if (device.kind == DeviceKind::kCuda && device.sm != 90) {
    return no("needs sm_90, the device is sm_{}", device.sm);
  }
  if (!kTile.general() && p.varlen) return no("has no sequences of different lengths (varlen)");
  const Answer vectors = kTile.general() ? sm80::supports_vectors(p) : yes();
  if (!vectors.yes) return vectors;
  return sm80::supports_common(p, device,
                               {kType, kTile.head_dim, kTile.variant, kTile.smem_bytes()});
}

// What supports_shape() leaves to sm_80's kernels because of few queries.
Answer supports_few(const AttentionProblem& p, const Device& device, const ForwardTile& tile) {
  if (p.longest_k() <= kFewKeys) return no("{} keys are few", p.longest_k());
  if (tiles_of(p, tile) > kMostTiles / 2) return no("too many sequences");
  const Division division = division_of(p, device, tile);
  if (division.pack > 1 || division.splits > 1) return yes();
  return no("is for heads of a group that share a block, and for keys that are split");
}

template <DType kType, int kHeadDim>
Answer few_supports(const AttentionProblem& p, const Device& device) {
  constexpr ForwardTile kTile = forward_tile(kHeadDim, Variant::kGeneral, 128);
  Answer common = supports_device<kType, kTile>(p, device);
  return common.yes ? supports_few(p, device, kTile) : common;
}

template <DType kType, int kHeadDim, Variant kVariant, int kRows>
Answer forward_supports(const AttentionProblem& p, const Device& device) {
  constexpr ForwardTile kTile = forward_tile(kHeadDim, kVariant, kRows);
  const Answer common = supports_device<kType, kTile>(p, device);
  if (!common.yes) return common;
  if (kTile.general() && !p.varlen && p.softcap == 0 && !p.alibi && p.scale() > 0) {
    return no("is for varlen, softcap, ALiBi and scale <= 0");
  }
  return supports_shape(p, device, kTile);
}

// The workspace has partial results of splits, then the counter of tiles and a link for each; a
// tile for each SM needs neither.
int64_t partial_bytes(const Plan& plan) {
  const AttentionProblem& p = plan.problem;
  if (plan.shape.num_splits == 1) return 0;
  return plan.shape.num_splits * p.num_rows() * (p.head_dim_v + 1) *
         static_cast<int64_t>(sizeof(float));
}

template <int kHeadDim, Variant kVariant, int kRows>
Status forward_shape(Plan& plan, const PlanOptions&) {
  constexpr ForwardTile kTile = forward_tile(kHeadDim, kVariant, kRows);
  plan.shape = {};
  plan.shape.block_rows = kTile.block_m();
  plan.shape.num_splits = division_of(plan.problem, plan.device, kTile).splits;
  const int64_t tiles = times(places_of(plan.problem, kTile), plan.shape.num_splits);
  plan.shape.num_tasks = tiles;
  const bool one_each = tiles <= plan.device.num_sms;
  plan.workspace_bytes = one_each ? 0 : (1 + tiles) * static_cast<int64_t>(sizeof(int32_t));
  plan.workspace_bytes += partial_bytes(plan);
  return {};
}

// Heads whose K and V fit into about half of the L2 cache, whole groups of them.
int32_t section_heads(const AttentionProblem& p) {
  constexpr int64_t kBytes = 24 << 20;
  const int64_t of_head = p.seqlen_k * (p.head_dim + p.head_dim_v) * 2;
  const int64_t heads = p.group() * std::max<int64_t>(1, kBytes / of_head);
  return static_cast<int32_t>(std::min(heads, p.batch * p.num_heads));
}

// As sm_80's general forward has them, which may take the plan's place.
void set_splits(TileForwardParams& params, const Plan& plan, const ForwardArgs& args,
                const ForwardTile& tile) {
  const AttentionProblem& p = plan.problem;
  params.num_splits = plan.shape.num_splits;
  params.split_blocks = static_cast<int32_t>(ceil_div(steps_of(p, tile), params.num_splits));
  params.partial_rows = p.num_rows();
  params.partial_queries = p.varlen ? p.total_q : p.seqlen_q;
  params.partial_o = static_cast<float*>(args.workspace);
  params.partial_lse = params.partial_o + params.num_splits * params.partial_rows * p.head_dim_v;
}

TileForwardParams params_of(const Plan& plan, const ForwardArgs& args, const ForwardTile& tile) {
  const AttentionProblem& p = plan.problem;
  TileForwardParams params;
  sm80::set_attention_params(params, p, args);
  params.pack = pack_of(p, tile);
  params.m_blocks = static_cast<int32_t>(ceil_div(p.longest_q() * params.pack, tile.block_m()));
  params.num_tiles = static_cast<int32_t>(plan.shape.num_tasks);
  if (!tile.general()) {
    params.section_heads = tile.banded() ? section_heads(p) : 1;
    params.last_section = params.batch * params.num_heads / params.section_heads - 1;
  }
  const int64_t partial = partial_bytes(plan);
  if (partial > 0) set_splits(params, plan, args, tile);
  if (plan.workspace_bytes > partial) {
    params.next_tile = reinterpret_cast<int32_t*>(static_cast<char*>(args.workspace) + partial);
    params.redo_links = params.next_tile + 1;
  }
  return params;
}

// Of boxes of `rows` x `outer` elements along the second and the third axis.
bool make_map(TensorMap* map, TensorRef x, const AttentionProblem& p, int64_t seqlen, int64_t heads,
              int rows, int outer = 1) {
  if (p.varlen) x.batch = x.seqlen;  // steps nowhere, but 0 may be refused
  return make_tensor_map(map, x, p.dtype, seqlen, heads, p.varlen ? 1 : p.batch, rows, outer);
}
bool make_tensor_maps(TileForwardParams& params, const AttentionProblem& p,
                      const ForwardTile& tile) {
  const int64_t n_q = p.varlen ? p.total_q : p.seqlen_q, n_k = p.varlen ? p.total_k : p.seqlen_k;
  const int64_t kv_heads = p.num_heads / p.group();
  if (!make_map(&params.k_map, params.k, p, n_k, kv_heads, tile.block_n) ||
      !make_map(&params.v_map, params.v, p, n_k, kv_heads, tile.block_n) ||
      !make_map(&params.o_map, params.o, p, n_q, p.num_heads, 64)) {
    return false;
  }
  if (params.pack == 1) return make_map(&params.q_map, params.q, p, n_q, p.num_heads, 64);
  TensorRef q = params.q;  // a tile has all heads of a query, then those of the next one
  std::swap(q.seqlen, q.head);
  return make_map(&params.q_map, q, p, p.num_heads, n_q, params.pack, 64 / params.pack);
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
  if (error == cudaSuccess && params.num_splits > 1) {
    error = sm80::launch_combine<kType>(params, stream);
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

template <DType kType, int kHeadDim>
KernelEntry few_entry(std::string_view name) {
  KernelEntry entry = forward_entry<kType, kHeadDim, Variant::kGeneral, 128>(name);
  entry.supports = few_supports<kType, kHeadDim>;
  return entry;
}

}  // namespace

std::vector<const KernelEntry*> few_query_entries() {
  static const KernelEntry list[] = {few_entry<DType::kBf16, 64>("sm90.forward.d64.few.bf16"),
                                     few_entry<DType::kFp16, 64>("sm90.forward.d64.few.fp16"),
                                     few_entry<DType::kBf16, 128>("sm90.forward.d128.few.bf16"),
                                     few_entry<DType::kFp16, 128>("sm90.forward.d128.few.fp16")};
  std::vector<const KernelEntry*> all;
  for (const KernelEntry& entry : list) all.push_back(&entry);
  return all;
}

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
