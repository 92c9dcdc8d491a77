// The sm_80 backward's entries: what they compute, their workspace, the launch.
#include <algorithm>

#include "cuda/backward_tile.h"
#include "cuda/sm80/entries.h"
#include "cuda/sm80/launch.h"

namespace tilewise::cuda::sm80 {
namespace {

int64_t key_blocks(const AttentionProblem& p, const BackwardTile& tile) {
  return std::max<int64_t>(1, ceil_div(p.longest_k(), tile.block_n));
}

template <DType kType, int kHeadDim, Variant kVariant>
Answer backward_supports(const AttentionProblem& p, const Device& device) {
  constexpr BackwardTile kTile = backward_tile_sm80(kHeadDim, kVariant);
  if (!p.backward()) return no("computes the backward only");
  Answer answer = supports_common(p, device, {kType, kHeadDim, kVariant, kTile.smem_bytes()});
  if (!answer.yes || !p.deterministic) return answer;
  const int64_t blocks = times(times(key_blocks(p, kTile), p.num_heads_kv), p.batch);
  if (blocks > INT32_MAX) return no("deterministic: {} blocks of keys > {}", blocks, INT32_MAX);
  return answer;
}

template <int kHeadDim, Variant kVariant>
Status backward_shape(Plan& plan, const PlanOptions&) {
  constexpr BackwardTile kTile = backward_tile_sm80(kHeadDim, kVariant);
  const AttentionProblem& p = plan.problem;
  plan.shape = {};
  plan.shape.block_rows = kTile.block_n;
  plan.shape.num_tasks = times(times(key_blocks(p, kTile), p.num_heads_kv), p.batch);
  return set_workspace_bytes(plan, BackwardWorkspace(p, kHeadDim, p.deterministic));
}

template <DType kType, int kHeadDim, Variant kVariant>
Status run_backward_kernel(const Plan& plan, const BackwardArgs& args) {
  if (Status s = check_devices(plan.device, args.stream); !s.ok()) return s;
  const AttentionProblem& p = plan.problem;
  BackwardParams params;
  set_backward_params(params, p, args, BackwardWorkspace(p, kHeadDim, p.deterministic));
  const auto stream = static_cast<cudaStream_t>(args.stream);
  const bool vectors =
      params.q.vectors && params.k.vectors && params.v.vectors && params.do_.vectors;
  const auto launch = kVariant == Variant::kGeneral || vectors
                          ? launch_backward<kType, kHeadDim, kVariant>
                          : launch_backward<kType, kHeadDim, Variant::kGeneral>;
  return status_of(plan, launch(params, stream));
}

template <DType kType, int kHeadDim, Variant kVariant>
KernelEntry backward_entry(std::string_view name) {
  return {name,
          "mma.sync, blocks of keys, fp32 sums of dq",
          backward_supports<kType, kHeadDim, kVariant>,
          backward_shape<kHeadDim, kVariant>,
          nullptr,
          run_backward_kernel<kType, kHeadDim, kVariant>};
}

}  // namespace

BackwardWorkspace::BackwardWorkspace(const AttentionProblem& p, int head_dim, bool ticket_too)
    : with_turns(p.deterministic), with_ticket(ticket_too) {
  constexpr int64_t m = kBackwardBlockM;
  padded_q = p.varlen ? (p.total_q + times(p.batch, m)) / m * m : ceil_div(p.seqlen_q, m) * m;
  const int64_t rows = times(times(padded_q, p.num_heads), p.varlen ? 1 : p.batch);
  dq_sum = take(times(rows, 4 * head_dim));
  row_lse = take(times(rows, 4));
  delta = take(times(rows, 4));
  if (with_turns) dq_turn = take(times(rows / m, 4));
  if (with_ticket) ticket = take(4);
}

int64_t BackwardWorkspace::take(int64_t bytes) {
  const int64_t at = size;
  size = bytes > INT64_MAX - 256 - size ? INT64_MAX - 255 : size + ceil_div(bytes, 256) * 256;
  return at;
}

void set_backward_params(BackwardParams& params, const AttentionProblem& p,
                         const BackwardArgs& args, const BackwardWorkspace& at) {
  set_attention_params(params, p, args);
  params.do_ = tensor_ref(p, TensorId::kDo, args.do_);
  params.dq = tensor_ref(p, TensorId::kDq, args.dq);
  params.dk = tensor_ref(p, TensorId::kDk, args.dk);
  params.dv = tensor_ref(p, TensorId::kDv, args.dv);
  params.m_blocks =
      static_cast<int32_t>(std::max<int64_t>(1, ceil_div(p.longest_q(), kBackwardBlockM)));
  char* const workspace = static_cast<char*>(args.workspace);
  params.padded_q = at.padded_q;
  params.dq_sum = reinterpret_cast<float*>(workspace + at.dq_sum);
  params.row_lse = reinterpret_cast<float*>(workspace + at.row_lse);
  params.delta = reinterpret_cast<float*>(workspace + at.delta);
  if (at.with_turns) params.dq_turn = reinterpret_cast<int32_t*>(workspace + at.dq_turn);
  if (at.with_ticket) params.ticket = reinterpret_cast<int32_t*>(workspace + at.ticket);
}

Status set_workspace_bytes(Plan& plan, const BackwardWorkspace& at) {
  plan.workspace_bytes = at.size;
  if (at.size <= INT64_MAX - 256) return {};
  return {StatusCode::kOverflow, "the sums of dq overflow 64 bits"};
}

template <DType kType, int kHeadDim>
Status run_general_backward(const Plan& plan, const BackwardArgs& args) {
  return run_backward_kernel<kType, kHeadDim, Variant::kGeneral>(plan, args);
}
#define TILEWISE_TYPES(d)                                                                  \
  template Status run_general_backward<DType::kBf16, d>(const Plan&, const BackwardArgs&); \
  template Status run_general_backward<DType::kFp16, d>(const Plan&, const BackwardArgs&);
TILEWISE_TYPES(64)
TILEWISE_TYPES(128)
#undef TILEWISE_TYPES

std::vector<const KernelEntry*> backward_entries() {
#define TILEWISE_TYPES(d, name, variant)                                                     \
  backward_entry<DType::kBf16, d, Variant::variant>("sm80.backward.d" #d "." #name ".bf16"), \
      backward_entry<DType::kFp16, d, Variant::variant>("sm80.backward.d" #d "." #name ".fp16")
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
