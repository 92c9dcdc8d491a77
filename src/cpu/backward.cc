// The CPU backward: which kernels there are, what they need, and how a call is cut into tasks.
#include "cpu/backward.h"

#include <algorithm>

#include "core/planted.h"
#include "core/registry.h"
#include "cpu/entries.h"
#include "cpu/parallel.h"

namespace tilewise::cpu {
namespace {

constexpr int64_t kMaxHeadDim = 512;
constexpr int64_t kPartialBytes = int64_t{64} << 20;  // dq partials alive at once, if a head fits
constexpr int64_t kRowChunk = 512;  // rows per task of the passes over rows; holds whole blocks

// How a call is cut: a function of the plan's problem and threads.
struct Division {
  int64_t heads = 0;         // kv heads of all sequences
  int64_t supers = 0;        // most super-blocks of a sequence
  int64_t most_keys = 0;     // of a super-block
  int64_t rows = 0;          // query rows of the longest sequence, all heads of a group
  bool whole_heads = false;  // a task runs all super-blocks of a head; else one
  int64_t heads_per_wave = 0, supers_per_wave = 0;
  // fp32 values
  __int128 sum = 0;   // dq of one head
  __int128 slot = 0;  // partials (and their sum) of one head of a wave, or of one whole head
  __int128 num_slots = 0;
  __int128 delta = 0;
  __int128 scratch = 0;  // one thread

  __int128 bytes(int threads) const { return 4 * (delta + scratch * threads + slot * num_slots); }
};

Division divide(const AttentionProblem& p, int threads, const BackwardTiling& tiling) {
  Division d;
  d.heads = p.batch * p.num_heads_kv;
  const int64_t super_block = backward_super_block(p.mask, p.longest_k());
  d.supers = std::max<int64_t>(1, round_up_div(p.longest_k(), super_block));
  if (const int64_t n = backward_long_sequence(p.mask); p.varlen && p.longest_k() >= n) {
    d.supers = std::max(d.supers, round_up_div(n - 1, backward_super_block(p.mask, n - 1)));
  }
  d.most_keys =
      std::min(super_block, round_up(std::max<int64_t>(1, p.longest_k()), kBackwardBlockN));
  d.rows = p.longest_q() * p.group();
  d.sum = static_cast<__int128>(d.rows) * round_up(p.head_dim, tiling.lanes);
  d.delta = round_up(p.num_rows(), 16);
  d.scratch = BackwardScratch(tiling, d.most_keys, p.head_dim, p.head_dim_v).size;
  d.heads_per_wave = d.heads;
  d.supers_per_wave = d.supers;
  if (d.supers == 1) return d;  // dq needs no partials
  d.whole_heads = d.heads >= 4 * static_cast<int64_t>(threads);
  if (d.whole_heads) {
    d.slot = d.sum;
    d.num_slots = threads;
    return d;
  }
  const int64_t fit = static_cast<int64_t>(kPartialBytes / std::max<__int128>(1, 4 * d.sum));
  if (fit >= d.supers) {
    d.heads_per_wave = std::min(d.heads, fit / d.supers);
  } else {
    d.heads_per_wave = 1;
    d.supers_per_wave = std::min(d.supers, std::max<int64_t>(fit, 2 * threads));
  }
  d.slot = d.sum * (d.supers_per_wave + (d.supers_per_wave < d.supers ? 1 : 0));
  d.num_slots = d.heads_per_wave;
  return d;
}

BackwardTensor tensor(const AttentionProblem& p, TensorId t, const void* data) {
  const Strides& s = p.stride(t);
  return {const_cast<void*>(data), s.batch, s.seqlen, s.head};
}

BackwardParams params(const AttentionProblem& p, const BackwardArgs& args, int64_t most_keys) {
  BackwardParams r;
  r.dtype = p.dtype;
  r.group = static_cast<int32_t>(p.group());
  r.head_dim = p.head_dim;
  r.head_dim_v = p.head_dim_v;
  r.most_keys = most_keys;
  r.mask = p.mask;
  if (planted(Defect::kBackwardCausalOffByOne) && p.mask.is_causal()) r.mask.window_right = 1;
  r.scale = static_cast<float>(p.scale());
  r.softcap = p.softcap;
  r.q = tensor(p, TensorId::kQ, args.q);
  r.k = tensor(p, TensorId::kK, args.k);
  r.v = tensor(p, TensorId::kV, args.v);
  r.o = tensor(p, TensorId::kO, args.o);
  r.do_ = tensor(p, TensorId::kDo, args.do_);
  r.dq = tensor(p, TensorId::kDq, args.dq);
  r.dk = tensor(p, TensorId::kDk, args.dk);
  r.dv = tensor(p, TensorId::kDv, args.dv);
  r.lse = args.lse;
  r.lse_batch_stride = p.num_heads * p.seqlen_q;  // 0 when varlen
  r.lse_head_stride = p.varlen ? p.total_q : p.seqlen_q;
  r.alibi_slopes = p.alibi ? args.alibi_slopes : nullptr;
  r.alibi_batch_stride = args.alibi_batch_stride;
  return r;
}

// One call in progress.
struct Run {
  const AttentionProblem& problem;
  const BackwardArgs& args;
  const BackwardKernels& kernels;
  const int threads;
  const Division division;
  const BackwardParams params;
  float* const delta;    // (rows of all heads)
  float* const scratch;  // (threads, division.scratch)
  float* const slots;

  Run(const Plan& plan, const BackwardArgs& a, const BackwardKernels& k)
      : problem(plan.problem),
        args(a),
        kernels(k),
        threads(plan.shape.threads),
        division(divide(plan.problem, threads, k.tiling)),
        params(cpu::params(plan.problem, a, division.most_keys)),
        delta(static_cast<float*>(a.workspace)),
        scratch(delta + static_cast<int64_t>(division.delta)),
        slots(scratch + static_cast<int64_t>(division.scratch) * threads) {}

  BackwardHead head(int64_t index) const {
    const int64_t batch = index / problem.num_heads_kv;
    BackwardHead h;
    h.kv_head = index % problem.num_heads_kv;
    h.slopes_batch = batch;
    if (problem.varlen) {
      const int32_t* q = args.cu_seqlens_q + batch;
      const int32_t* k = args.cu_seqlens_k + batch;
      h.sequence = {0, q[0], k[0], {q[1] - q[0], k[1] - k[0]}};
      h.delta = delta + q[0] * problem.num_heads;
    } else {
      h.sequence = {batch, 0, 0, {problem.seqlen_q, problem.seqlen_k}};
      h.delta = delta + batch * problem.seqlen_q * problem.num_heads;
    }
    h.super_block = backward_super_block(problem.mask, h.sequence.n.k);
    h.num_super_blocks = std::max<int64_t>(1, round_up_div(h.sequence.n.k, h.super_block));
    h.delta += h.kv_head * h.rows(params.group);
    return h;
  }

  float* scratch_of(int worker) const {
    return scratch + static_cast<int64_t>(division.scratch) * worker;
  }

  void row_sums() const {
    const int64_t chunks = round_up_div(division.rows, kRowChunk);
    parallel_for(division.heads * chunks, threads, args.pool, [&](int64_t task, int) {
      const BackwardHead h = head(task / chunks);
      const int64_t begin = task % chunks * kRowChunk;
      kernels.delta(params, h, begin, std::min(begin + kRowChunk, h.rows(params.group)));
    });
  }

  void whole_heads() const {
    parallel_for(division.heads, threads, args.pool, [&](int64_t task, int worker) {
      BackwardTask t;
      t.head = head(task);
      t.super_end = t.head.num_super_blocks;
      t.sink = t.super_end == 1 ? DqSink::kOutput : DqSink::kAccumulate;
      t.dq = slots + static_cast<int64_t>(division.slot) * worker;
      t.scratch = scratch_of(worker);
      kernels.super_blocks(params, t);
      if (t.sink == DqSink::kOutput) return;
      BackwardReduction r;
      r.head = t.head;
      r.row_end = t.head.rows(params.group);
      r.sum = t.dq;
      r.from_sum = true;
      kernels.reduce(params, r);
    });
  }

  // Super-blocks [super_begin, super_begin + supers_per_wave) of the heads of a wave. The first
  // super-blocks of all heads come first: under a causal mask they have most queries.
  void wave(int64_t head_begin, int64_t head_count, int64_t super_begin) const {
    const int64_t partial = static_cast<int64_t>(division.sum);
    const int64_t slot = static_cast<int64_t>(division.slot);
    const int64_t supers = std::min(division.supers_per_wave, division.supers - super_begin);
    parallel_for(head_count * supers, threads, args.pool, [&](int64_t task, int worker) {
      BackwardTask t;
      t.head = head(head_begin + task % head_count);
      t.super_begin = super_begin + task / head_count;
      t.super_end = t.super_begin + 1;
      if (t.super_begin >= t.head.num_super_blocks) return;
      t.sink = t.head.num_super_blocks == 1 ? DqSink::kOutput : DqSink::kPartial;
      t.dq = slots + task % head_count * slot + task / head_count * partial;
      t.scratch = scratch_of(worker);
      kernels.super_blocks(params, t);
    });
    if (division.supers == 1) return;
    const int64_t chunks = round_up_div(division.rows, kRowChunk);
    parallel_for(head_count * chunks, threads, args.pool, [&](int64_t task, int) {
      BackwardReduction r;
      r.head = head(head_begin + task / chunks);
      const int64_t all = r.head.num_super_blocks;
      if (all == 1 || super_begin >= all) return;
      r.row_begin = task % chunks * kRowChunk;
      r.row_end = std::min(r.row_begin + kRowChunk, r.head.rows(params.group));
      r.partials = slots + task / chunks * slot;
      r.partial_stride = partial;
      r.super_begin = super_begin;
      r.super_end = std::min(super_begin + supers, all);
      r.sum = slots + task / chunks * slot + division.supers_per_wave * partial;
      r.from_sum = super_begin > 0;
      r.to_sum = r.super_end < all;
      kernels.reduce(params, r);
    });
  }

  void waves() const {
    for (int64_t first = 0; first < division.heads; first += division.heads_per_wave) {
      const int64_t count = std::min(division.heads_per_wave, division.heads - first);
      for (int64_t super = 0; super < division.supers; super += division.supers_per_wave) {
        wave(first, count, super);
      }
    }
  }
};

Status run(const Plan& plan, const BackwardArgs& args, const BackwardKernels& kernels) {
  const Run call(plan, args, kernels);
  if (call.division.heads == 0) return {};
  call.row_sums();
  if (call.division.whole_heads) {
    call.whole_heads();
  } else {
    call.waves();
  }
  return {};
}

Status shape(Plan& plan, const BackwardKernels& kernels) {
  const AttentionProblem& p = plan.problem;
  Division d = divide(p, plan.shape.threads, kernels.tiling);
  const __int128 tasks = static_cast<__int128>(d.heads) * (d.whole_heads ? 1 : d.supers);
  plan.shape.num_tasks = static_cast<int64_t>(std::min<__int128>(tasks, INT64_MAX));
  if (plan.shape.num_tasks < plan.shape.threads) {
    plan.shape.threads = std::max(1, static_cast<int>(plan.shape.num_tasks));
    d = divide(p, plan.shape.threads, kernels.tiling);
  }
  plan.shape.block_rows = d.whole_heads ? p.longest_k() : d.most_keys;
  plan.shape.heads_per_wave = d.whole_heads ? 0 : d.heads_per_wave;
  const __int128 bytes = d.bytes(plan.shape.threads);
  if (bytes > INT64_MAX) {
    return {StatusCode::kOverflow,
            format("workspace for batch {}, seqlen_q {}, seqlen_k {}, num_heads {}, head_dim {} "
                   "does not fit into 64 bits",
                   p.batch, p.longest_q(), p.longest_k(), p.num_heads, p.head_dim)};
  }
  plan.workspace_bytes = static_cast<int64_t>(bytes);
  return {};
}

template <CpuIsa kIsa, const BackwardKernels& kKernels>
struct Entry {
  static Answer supports(const AttentionProblem& p, const Device& device) {
    if (device.kind != DeviceKind::kCpu) return no("tensors are not on the CPU");
    if (!p.backward()) return no("direction is forward");
    if (device.isa < kIsa) return no("needs {}, cpu runs {}", name_of(kIsa), name_of(device.isa));
    if (p.dtype == DType::kFp64) return no("dtype fp64 is computed by cpu.reference only");
    if (kIsa == CpuIsa::kAvx512Bf16 && p.dtype != DType::kBf16) {
      return no("dtype is {}; vdpbf16ps takes bf16 only", name_of(p.dtype));
    }
    if (p.head_dim > kMaxHeadDim) return no("head_dim {} > {}", p.head_dim, kMaxHeadDim);
    if (p.head_dim_v > kMaxHeadDim) return no("head_dim_v {} > {}", p.head_dim_v, kMaxHeadDim);
    return yes();
  }

  static constexpr KernelEntry entry(std::string_view name, std::string_view summary) {
    return {
        .name = name,
        .summary = summary,
        .supports = supports,
        .shape = [](Plan& plan, const PlanOptions&) { return cpu::shape(plan, kKernels); },
        .forward = nullptr,
        .backward = [](const Plan& plan,
                       const BackwardArgs& args) { return run(plan, args, kKernels); },
    };
  }
};

#if defined(TILEWISE_X86)
constexpr KernelEntry kAvx512Bf16 = Entry<CpuIsa::kAvx512Bf16, avx512bf16::kBackwardKernels>::entry(
    "cpu.backward.avx512bf16", "bf16 products on vdpbf16ps");
constexpr KernelEntry kAvx512 = Entry<CpuIsa::kAvx512, avx512::kBackwardKernels>::entry(
    "cpu.backward.avx512", "fp32 math, 16 lanes");
constexpr KernelEntry kAvx2 =
    Entry<CpuIsa::kAvx2, avx2::kBackwardKernels>::entry("cpu.backward.avx2", "fp32 math, 8 lanes");
#endif
constexpr KernelEntry kScalar = Entry<CpuIsa::kScalar, scalar::kBackwardKernels>::entry(
    "cpu.backward.scalar", "fp32 math without vector instructions");

}  // namespace

std::vector<const KernelEntry*> backward_entries() {
#if defined(TILEWISE_X86)
  return {&kAvx512Bf16, &kAvx512, &kAvx2, &kScalar};
#else
  return {&kScalar};
#endif
}

}  // namespace tilewise::cpu
