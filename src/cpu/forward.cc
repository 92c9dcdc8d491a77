// The forward's driver: how a problem is divided into tasks, and the registry entries.
#include "cpu/forward.h"

#include <algorithm>

#include "core/planted.h"
#include "cpu/entries.h"
#include "cpu/parallel.h"

namespace tilewise::cpu {
namespace {

// Query rows of one sequence, for every kv head.
struct RowRange {
  Sequence sequence;
  int64_t row_begin = 0, row_end = 0;
  int64_t work = 0;  // visible (query, key) pairs, about
};

constexpr int64_t kAlignment = 64;
constexpr int64_t kScratchLimit = int64_t{4}
                                  << 20;  // per thread, unless one query block needs more
constexpr int kMostQueryBlocks = 64;
constexpr int kTasksPerThread = 4;
constexpr int kFewQueryBlocks = 4;
constexpr int64_t kMostHeadDim = 512;

template <CpuIsa kIsa>
const ForwardKernel& kernel() {
#if defined(TILEWISE_X86)
  if constexpr (kIsa == CpuIsa::kAvx2) return avx2::kForwardKernel;
  if constexpr (kIsa == CpuIsa::kAvx512) return avx512::kForwardKernel;
  if constexpr (kIsa == CpuIsa::kAvx512Bf16) return avx512bf16::kForwardKernel;
#endif
  if constexpr (kIsa == CpuIsa::kScalar) return scalar::kForwardKernel;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int block_n_of(const AttentionProblem& p) { return forward_block_n(p.head_dim, !p.mask.is_full()); }

// More query blocks share one packing of K and V (64 % of peak with 1, 79 % with 43 on AVX2), fewer
// keep every thread busy. The choice does not touch any bit of the result.
int choose_query_blocks(const AttentionProblem& p, const ForwardTile& tile, int threads) {
  const auto scratch = [&](int blocks) {
    return ForwardScratch(tile, p.head_dim, p.head_dim_v, block_n_of(p), blocks).bytes;
  };
  const int64_t fixed = 2 * scratch(1) - scratch(2);
  const int64_t fitting = (kScratchLimit - fixed) / (scratch(2) - scratch(1));
  int64_t blocks = std::clamp<int64_t>(fitting, 1, kMostQueryBlocks);

  const int64_t width = int64_t{tile.lanes} * tile.vecs;
  const int64_t longest = std::max<int64_t>(1, ceil_div(p.group() * p.longest_q(), width));
  if (threads > 1) {
    const int64_t rows = p.varlen ? p.total_q : p.batch * p.seqlen_q;
    const int64_t all = ceil_div(rows * p.num_heads, width);
    const int64_t few = std::clamp<int64_t>(all / threads, 1, kFewQueryBlocks);
    blocks = std::min(blocks, std::max(all / (kTasksPerThread * threads), few));
  }
  return static_cast<int>(ceil_div(longest, ceil_div(longest, blocks)));
}

// Upper bound of the row ranges of all sequences; false on overflow.
bool count_ranges(const AttentionProblem& p, int64_t block_rows, int64_t* ranges) {
  int64_t rows = 0;
  if (!p.varlen) {
    if (__builtin_mul_overflow(p.seqlen_q, p.group(), &rows)) return false;
    return !__builtin_mul_overflow(p.batch, ceil_div(rows, block_rows), ranges);
  }
  if (__builtin_mul_overflow(p.total_q, p.group(), &rows)) return false;
  return !__builtin_add_overflow(rows / block_rows, std::min(p.batch, p.total_q), ranges);
}

template <CpuIsa kIsa>
Status shape(Plan& plan, const PlanOptions& options) {
  const AttentionProblem& p = plan.problem;
  const ForwardTile& tile = kernel<kIsa>().tile;
  const int threads = std::max(1, options.threads > 0 ? options.threads : plan.device.num_cores);
  const int blocks = choose_query_blocks(p, tile, threads);
  const int64_t block_rows = int64_t{blocks} * tile.vecs * tile.lanes;
  const ForwardScratch scratch(tile, p.head_dim, p.head_dim_v, block_n_of(p), blocks);

  int64_t ranges = 0, tasks = 0, list = 0, bytes = 0;
  if (!count_ranges(p, block_rows, &ranges) ||
      __builtin_mul_overflow(ranges, p.num_heads_kv, &tasks) ||
      __builtin_mul_overflow(ranges, static_cast<int64_t>(sizeof(RowRange)), &list)) {
    return {StatusCode::kOverflow, format("batch {} x seqlen_q {} x num_heads {} overflows 64 bits",
                                          p.batch, p.varlen ? p.total_q : p.seqlen_q, p.num_heads)};
  }
  plan.shape = {};
  plan.shape.threads =
      static_cast<int32_t>(std::min<int64_t>(threads, std::max<int64_t>(1, tasks)));
  plan.shape.block_rows = block_rows;
  plan.shape.num_tasks = tasks;
  static_assert(sizeof(RowRange) % kAlignment == 0);
  if (tasks > 0 && __builtin_add_overflow(list, plan.shape.threads * scratch.bytes, &bytes)) {
    return {StatusCode::kOverflow, format("workspace of {} tasks overflows 64 bits", tasks)};
  }
  plan.workspace_bytes = bytes;
  return {};
}

TensorStrides strides_of(const AttentionProblem& p, TensorId t) {
  const Strides& s = p.stride(t);
  return {p.varlen ? 0 : s.batch, s.seqlen, s.head};
}

ForwardParams params_of(const Plan& plan, const ForwardArgs& args, const ForwardTile& tile) {
  const AttentionProblem& p = plan.problem;
  ForwardParams params;
  params.q = args.q;
  params.k = args.k;
  params.v = args.v;
  params.o = args.o;
  params.lse = args.lse;
  params.q_stride = strides_of(p, TensorId::kQ);
  params.k_stride = strides_of(p, TensorId::kK);
  params.v_stride = strides_of(p, TensorId::kV);
  params.o_stride = strides_of(p, TensorId::kO);
  params.lse_head_stride = p.varlen ? p.total_q : p.seqlen_q;
  params.lse_batch_stride = p.varlen ? 0 : p.num_heads * p.seqlen_q;
  if (p.alibi) {
    params.alibi_slopes = args.alibi_slopes;
    params.alibi_batch_stride = args.alibi_batch_stride;
  }
  params.dtype = p.dtype;
  params.group = static_cast<int32_t>(p.group());
  params.head_dim = static_cast<int32_t>(p.head_dim);
  params.head_dim_v = static_cast<int32_t>(p.head_dim_v);
  params.block_n = block_n_of(p);
  params.query_blocks = static_cast<int32_t>(plan.shape.block_rows / (tile.vecs * tile.lanes));
  params.scale = static_cast<float>(p.scale());
  if (planted(Defect::kScaleOnePercent)) params.scale *= 1.01f;
  params.softcap = p.softcap;
  params.mask = p.mask;
  if (planted(Defect::kCausalOffByOne) && p.mask.is_causal()) params.mask.window_right = 1;
  return params;
}

Sequence sequence_of(const AttentionProblem& p, const ForwardArgs& args, int64_t batch) {
  if (!p.varlen) return {batch, 0, 0, {p.seqlen_q, p.seqlen_k}};
  const int64_t q = args.cu_seqlens_q[batch], k = args.cu_seqlens_k[batch];
  return {batch, q, k, {args.cu_seqlens_q[batch + 1] - q, args.cu_seqlens_k[batch + 1] - k}};
}

// The row ranges of all sequences, most work first.
int64_t list_ranges(const Plan& plan, const ForwardArgs& args, RowRange* list) {
  const AttentionProblem& p = plan.problem;
  const int64_t group = p.group(), block_n = block_n_of(p);
  int64_t count = 0;
  bool sorted = true;
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    const Sequence sequence = sequence_of(p, args, batch);
    const int64_t rows = sequence.n.q * group;
    for (int64_t row = 0; row < rows; row += plan.shape.block_rows) {
      RowRange& range = list[count];
      range = {sequence, row, std::min(rows, row + plan.shape.block_rows), 0};
      const int64_t first = row / group, last = (range.row_end - 1) / group;
      const int64_t keys = p.mask.keys_of((first + last) / 2, sequence.n).end -
                           p.mask.keys_of((first + last) / 2, sequence.n).begin;
      range.work = (range.row_end - row) * (std::max<int64_t>(keys, 0) + block_n);
      sorted = sorted && (count == 0 || list[count - 1].work >= range.work);
      ++count;
    }
  }
  if (!sorted) {
    std::sort(list, list + count,
              [](const RowRange& a, const RowRange& b) { return a.work > b.work; });
  }
  return count;
}

template <CpuIsa kIsa>
Status forward(const Plan& plan, const ForwardArgs& args) {
  const ForwardKernel& chosen = kernel<kIsa>();
  const AttentionProblem& p = plan.problem;
  const ForwardParams params = params_of(plan, args, chosen.tile);
  if (plan.shape.num_tasks == 0) return {};
  RowRange* list = static_cast<RowRange*>(args.workspace);
  const int64_t ranges = list_ranges(plan, args, list);
  // The list's upper bound, so that the slices do not depend on the lengths.
  char* scratch = reinterpret_cast<char*>(list + plan.shape.num_tasks / p.num_heads_kv);
  const int64_t scratch_bytes =
      ForwardScratch(chosen.tile, p.head_dim, p.head_dim_v, params.block_n, params.query_blocks)
          .bytes;
  const int64_t tasks = ranges * p.num_heads_kv;
  const auto task_of = [&](int64_t index) {
    const RowRange& range = list[index / p.num_heads_kv];
    return ForwardTask{range.sequence, index % p.num_heads_kv, range.row_begin, range.row_end};
  };
  parallel_for(tasks, plan.shape.threads, args.pool, [&](int64_t index, int worker) {
    const int64_t following = index + plan.shape.threads;
    const ForwardTask next = task_of(following < tasks ? following : index);
    ForwardTask task = task_of(index);
    if (following < tasks) task.next = &next;
    if (planted(Defect::kLastKeyDropped)) task.sequence.n.k -= task.sequence.n.k > 0;
    chosen.run(params, task, scratch + worker * scratch_bytes);
  });
  return {};
}

template <CpuIsa kIsa>
Answer supports(const AttentionProblem& p, const Device& device) {
  if (device.kind != DeviceKind::kCpu) return no("tensors are on cuda:{}", device.index);
  if (p.backward()) return no("computes the forward, the problem is a backward");
  if constexpr (kIsa == CpuIsa::kAvx512Bf16) {
    if (p.dtype != DType::kBf16) return no("dtype {} is not bf16", name_of(p.dtype));
  }
  if (p.dtype == DType::kFp64) return no("dtype fp64 has no vector kernel");
  if (p.head_dim > kMostHeadDim) return no("head_dim {} > {}", p.head_dim, kMostHeadDim);
  if (p.head_dim_v > kMostHeadDim) return no("head_dim_v {} > {}", p.head_dim_v, kMostHeadDim);
  if (device.isa < kIsa) return no("needs {}, device has {}", name_of(kIsa), name_of(device.isa));
  return yes();
}

template <CpuIsa kIsa>
const KernelEntry* entry(std::string_view name, std::string_view summary) {
  static const KernelEntry value = {name,        summary,       supports<kIsa>,
                                    shape<kIsa>, forward<kIsa>, nullptr};
  return &value;
}

}  // namespace

std::vector<const KernelEntry*> forward_entries() {
  return {
#if defined(TILEWISE_X86)
    entry<CpuIsa::kAvx512Bf16>("cpu.forward.avx512bf16", "bf16 products on vdpbf16ps"),
        entry<CpuIsa::kAvx512>("cpu.forward.avx512", "fp32 math, 16 lanes"),
        entry<CpuIsa::kAvx2>("cpu.forward.avx2", "fp32 math, 8 lanes"),
#endif
        entry<CpuIsa::kScalar>("cpu.forward.scalar", "fp32 math without vector instructions"),
  };
}

}  // namespace tilewise::cpu
