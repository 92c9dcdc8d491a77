#include "cpu/decode.h"

#include <algorithm>

#include "core/planted.h"
#include "cpu/entries.h"
#include "cpu/parallel.h"

namespace tilewise::cpu {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What lies where in the workspace. Slots: one partial result each.
struct Layout {
  int64_t threads = 1;
  int64_t slots = 0, slot_bytes = 0;
  int64_t table_bytes = 0;  // first_slots

  int64_t scratch_at() const { return 0; }
  int64_t table_at() const { return threads * static_cast<int64_t>(sizeof(DecodeScratch)); }
  int64_t partials_at() const { return table_at() + table_bytes; }
};

// Most chunks over all sequences: a sequence has one at least, so that its output is written.
int64_t most_chunks(const AttentionProblem& p) {
  if (!p.varlen) return p.batch * std::max<int64_t>(1, ceil_div(p.seqlen_k, kDecodeChunk));
  return p.batch + p.total_k / kDecodeChunk;
}

Status lay_out(const AttentionProblem& p, int threads, Layout* layout, int64_t* bytes) {
  layout->threads = threads;
  layout->table_bytes = ceil_div((p.batch + 1) * static_cast<int64_t>(sizeof(int64_t)), 64) * 64;
  const int64_t padded_v = ceil_div(p.head_dim_v, kDecodePad) * kDecodePad;
  layout->slot_bytes =
      DecodePartial::bytes(padded_decode_rows(p.longest_q() * p.group()), padded_v);
  int64_t partials = 0;
  if (__builtin_mul_overflow(most_chunks(p), p.num_heads_kv, &layout->slots) ||
      __builtin_mul_overflow(layout->slots, layout->slot_bytes, &partials) ||
      __builtin_add_overflow(partials, layout->partials_at(), bytes)) {
    return {
        StatusCode::kOverflow,
        format("partial results of {} chunks x {} kv heads, {} bytes each, do not fit into 64 bits",
               most_chunks(p), p.num_heads_kv, layout->slot_bytes)};
  }
  return {};
}

Status shape(Plan& plan, const PlanOptions& options) {
  const AttentionProblem& p = plan.problem;
  plan.shape.threads = options.threads > 0 ? options.threads : plan.device.num_cores;
  const int64_t splits = std::max<int64_t>(1, ceil_div(p.longest_k(), kDecodeChunk));
  if (splits > INT32_MAX) {
    return {StatusCode::kOverflow,
            format("seqlen_k {}: more than 2^31 chunks of {} keys", p.longest_k(), kDecodeChunk)};
  }
  plan.shape.num_splits = static_cast<int32_t>(splits);
  plan.shape.block_rows = p.longest_q() * p.group();
  Layout layout;
  const Status status = lay_out(p, plan.shape.threads, &layout, &plan.workspace_bytes);
  plan.shape.num_tasks = layout.slots;
  return status;
}

template <CpuIsa kIsa>
Answer supports(const AttentionProblem& p, const Device& device) {
  if (device.kind != DeviceKind::kCpu) return no("tensors are not on the cpu");
  if (p.backward()) return no("computes the forward only");
  if (kIsa == CpuIsa::kAvx512Bf16 && p.dtype != DType::kBf16) {
    return no("dtype {} is not bf16", name_of(p.dtype));
  }
  if (kIsa == CpuIsa::kAvx512Bf16 && p.group() < kDecodeWordGroup) {
    return no("{} heads per kv head < {}", p.group(), kDecodeWordGroup);
  }
  if (device.isa < kIsa) return no("needs {}, {} is in use", name_of(kIsa), name_of(device.isa));
  if (p.dtype == DType::kFp64) return no("dtype fp64 is computed by cpu.reference only");
  if (p.longest_q() * p.group() > kDecodeRows) {
    return no("seqlen_q {} x {} heads per kv head > {} rows", p.longest_q(), p.group(),
              kDecodeRows);
  }
  if (p.head_dim > 512) return no("head_dim {} > 512", p.head_dim);
  if (p.head_dim_v > 512) return no("head_dim_v {} > 512", p.head_dim_v);
  return yes();
}

DecodeTensor tensor(const AttentionProblem& p, TensorId id, const void* data) {
  const Strides& s = p.stride(id);
  return {const_cast<void*>(data), p.varlen ? 0 : s.batch, s.seqlen, s.head};
}

DecodeParams params_of(const AttentionProblem& p, const ForwardArgs& args) {
  DecodeParams params;
  params.q = tensor(p, TensorId::kQ, args.q);
  params.k = tensor(p, TensorId::kK, args.k);
  params.v = tensor(p, TensorId::kV, args.v);
  params.o = tensor(p, TensorId::kO, args.o);
  params.lse = args.lse;
  params.lse_head_stride = p.varlen ? p.total_q : p.seqlen_q;
  params.lse_batch_stride = p.varlen ? 0 : p.num_heads * p.seqlen_q;
  params.alibi_slopes = p.alibi ? args.alibi_slopes : nullptr;
  params.alibi_batch_stride = args.alibi_batch_stride;
  params.dtype = p.dtype;
  params.group = static_cast<int32_t>(p.group());
  params.head_dim = static_cast<int32_t>(p.head_dim);
  params.head_dim_v = static_cast<int32_t>(p.head_dim_v);
  params.scale = static_cast<float>(p.scale());
  if (planted(Defect::kScaleOnePercent)) params.scale *= 1.01f;
  params.softcap = p.softcap;
  params.mask = p.mask;
  const int64_t rows = (p.varlen ? p.total_k : p.batch * p.seqlen_k) * p.num_heads_kv;
  params.in_turns = rows * (p.head_dim + p.head_dim_v) * size_of(p.dtype) >= kDecodeTurnsFrom;
  if (planted(Defect::kCausalOffByOne) && p.mask.is_causal()) params.mask.window_right = 1;
  return params;
}

// A run: which slots belong to which sequence, and how to compute and join them.
struct Run {
  const Plan& plan;
  const AttentionProblem& p;
  const ForwardArgs& args;
  const DecodeKernel& kernel;
  const DecodeParams params;
  Layout layout;
  int64_t* first_chunk;  // (batch + 1): chunks of the sequences before
  char* workspace;

  Sequence sequence(int64_t b) const {
    Sequence s;
    s.batch = b;
    if (!p.varlen) {
      s.n = {p.seqlen_q, p.seqlen_k};
      return s;
    }
    s.q_start = args.cu_seqlens_q[b];
    s.k_start = args.cu_seqlens_k[b];
    s.n = {args.cu_seqlens_q[b + 1] - s.q_start, args.cu_seqlens_k[b + 1] - s.k_start};
    return s;
  }

  // Chunks that hold a visible key, of the sequence's own length: a short sequence in a large
  // allocation costs what a short sequence costs.
  TileRange chunks(const Sequence& s) const { return p.mask.kv_range(0, s.n.q, s.n, kDecodeChunk); }
  // Returns the most chunks of a sequence.
  int64_t count_chunks() {
    int64_t most = 0;
    first_chunk[0] = 0;
    for (int64_t b = 0; b < p.batch; ++b) {
      const Sequence s = sequence(b);
      const TileRange r = chunks(s);
      const int64_t count = s.n.q == 0 ? 0 : std::max<int64_t>(1, r.end - r.begin);
      first_chunk[b + 1] = first_chunk[b] + count;
      most = std::max(most, count);
    }
    return most;
  }

  DecodePartial* partial(int64_t slot) const {
    return reinterpret_cast<DecodePartial*>(workspace + layout.partials_at() +
                                            slot * layout.slot_bytes);
  }

  // Adjacent kv heads per task: more than one only where their rows lie side by side, and only
  // while the threads have enough tasks. No bit of the result depends on it.
  int choose_heads() const {
    if (params.k.head_stride >= params.k.seqlen_stride) return 1;
    const int64_t rows = padded_decode_rows(p.longest_q() * p.group());
    const int64_t dim = ceil_div(std::max(p.head_dim, p.head_dim_v), kDecodePad) * kDecodePad;
    const int64_t room = std::min(kDecodeWidth / rows, kDecodeScratch / (rows * dim));
    int64_t heads = std::min({p.num_heads_kv, int64_t{kDecodeHeads}, room});
    const int64_t enough = plan.shape.threads == 1 ? 1 : 4 * plan.shape.threads;
    while (heads > 1 && first_chunk[p.batch] * ceil_div(p.num_heads_kv, heads) < enough) heads /= 2;
    return static_cast<int>(heads);
  }

  // Tasks run over sequences, groups of kv heads, chunks: a task prefetches what the next one
  // reads. Slots run over sequences, chunks, kv heads.
  void run_task(int64_t index, int heads, int worker) const {
    const int64_t groups = ceil_div(p.num_heads_kv, heads);
    const int64_t b =
        std::upper_bound(first_chunk, first_chunk + p.batch + 1, index / groups) - first_chunk - 1;
    const int64_t of_sequence = index - first_chunk[b] * groups;
    const int64_t chunks_here = first_chunk[b + 1] - first_chunk[b];
    const int64_t group = of_sequence / chunks_here, chunk = of_sequence % chunks_here;
    DecodeTask task;
    task.sequence = sequence(b);
    task.kv_head = group * heads;
    task.heads = static_cast<int>(std::min<int64_t>(heads, p.num_heads_kv - task.kv_head));
    const TileRange r = chunks(task.sequence);
    if (!r.empty()) {
      task.k_begin = (r.begin + chunk) * kDecodeChunk;
      task.k_end = std::min(task.k_begin + kDecodeChunk, task.sequence.n.k);
    }
    if (planted(Defect::kLastKeyDropped) && task.k_end == task.sequence.n.k) {
      task.k_end -= task.k_end > task.k_begin;
    }
    task.partial = partial((first_chunk[b] + chunk) * p.num_heads_kv + task.kv_head);
    task.stride = layout.slot_bytes;
    kernel.chunk(params, task, reinterpret_cast<DecodeScratch*>(workspace)[worker]);
    if (chunks_here > 1) return;
    for (int h = 0; h < task.heads; ++h) combine(b, task.kv_head + h);
  }

  void combine(int64_t b, int64_t kv_head) const {
    DecodeParts parts;
    parts.sequence = sequence(b);
    parts.kv_head = kv_head;
    parts.first = partial(first_chunk[b] * p.num_heads_kv + kv_head);
    parts.count = first_chunk[b + 1] - first_chunk[b];
    if (planted(Defect::kChunkForgotten) && parts.count > 1) --parts.count;
    parts.stride = p.num_heads_kv * layout.slot_bytes;
    kernel.combine(params, parts);
  }
};

Status forward(const DecodeKernel& kernel, const Plan& plan, const ForwardArgs& args) {
  const AttentionProblem& p = plan.problem;
  Layout layout;
  int64_t bytes = 0;
  const Status status = lay_out(p, plan.shape.threads, &layout, &bytes);
  if (!status.ok()) return status;
  char* workspace = static_cast<char*>(args.workspace);
  Run run{plan,
          p,
          args,
          kernel,
          params_of(p, args),
          layout,
          reinterpret_cast<int64_t*>(workspace + layout.table_at()),
          workspace};
  const int64_t most_chunks = run.count_chunks();
  const int heads = run.choose_heads();
  parallel_for(run.first_chunk[p.batch] * ceil_div(p.num_heads_kv, heads), plan.shape.threads,
               args.pool, [&](int64_t task, int worker) { run.run_task(task, heads, worker); });
  if (most_chunks <= 1) return {};  // joined already
  parallel_for(p.batch * p.num_heads_kv, plan.shape.threads, args.pool,
               [&run, &p](int64_t task, int) {
                 const int64_t b = task / p.num_heads_kv;
                 if (run.first_chunk[b + 1] - run.first_chunk[b] > 1) {
                   run.combine(b, task % p.num_heads_kv);
                 }
               });
  return {};
}

template <CpuIsa kIsa, const DecodeKernel& kKernel>
KernelEntry entry(std::string_view name, std::string_view summary) {
  return {name,
          summary,
          supports<kIsa>,
          shape,
          [](const Plan& plan, const ForwardArgs& args) { return forward(kKernel, plan, args); },
          nullptr};
}

}  // namespace

std::vector<const KernelEntry*> decode_entries() {
  constexpr std::string_view kSummary = "fp32 math, keys split into chunks";
  static const KernelEntry scalar_entry =
      entry<CpuIsa::kScalar, scalar::kDecodeKernel>("cpu.decode.scalar", kSummary);
#if defined(TILEWISE_X86)
  static const KernelEntry bf16_entry = entry<CpuIsa::kAvx512Bf16, avx512bf16::kDecodeKernel>(
      "cpu.decode.avx512bf16", "5 or more heads per kv head; bf16 products on vdpbf16ps");
  static const KernelEntry avx512_entry =
      entry<CpuIsa::kAvx512, avx512::kDecodeKernel>("cpu.decode.avx512", kSummary);
  static const KernelEntry avx2_entry =
      entry<CpuIsa::kAvx2, avx2::kDecodeKernel>("cpu.decode.avx2", kSummary);
  return {&bf16_entry, &avx512_entry, &avx2_entry, &scalar_entry};
#else
  return {&scalar_entry};
#endif
}

}  // namespace tilewise::cpu
