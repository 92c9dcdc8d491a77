// What can be wrong with the pointers of a call. Nothing here allocates unless it fails.
#include <charconv>

#include "core/overlap.h"
#include "core/plan.h"

namespace tilewise {
namespace {

std::string hex(uint64_t value) {
  char text[20] = "0x";
  const auto result = std::to_chars(text + 2, text + sizeof text, value, 16);
  return std::string(text, result.ptr);
}

// One pointer of a call.
struct Operand {
  const char* name = nullptr;
  Footprint memory;
  bool written = false;
};

constexpr int kMostOperands = 13;  // backward: 9 tensors, slopes, 2 x cu_seqlens, workspace
constexpr int kMostOutputs = 4;    // backward: dq, dk, dv, workspace

// Gathers the pointers that are not null. The first problem met is kept.
class Operands {
 public:
  explicit Operands(const AttentionProblem& problem) : problem_(problem) {}

  void input(TensorId t, const void* pointer) { tensor(t, pointer, false); }
  void output(TensorId t, const void* pointer) { tensor(t, pointer, true); }
  void array(const char* name, const void* pointer, int64_t count, int element_bytes,
             bool required = true) {
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<uint64_t>(count), element_bytes, &bytes)) {
      fail({StatusCode::kOverflow, format("{}: {} elements do not fit into 64 bits", name, count)});
    }
    add(name, footprint_of(pointer, bytes), element_bytes, required, false);
  }
  void written_array(const char* name, const void* pointer, uint64_t bytes, int alignment) {
    add(name, footprint_of(pointer, bytes), alignment, false, true);
  }

  // Every output against every input and the other outputs.
  Status check_overlap() const {
    for (int i = 0; i < num_outputs_; ++i) {
      const Operand& out = *outputs_[i];
      for (int j = 0; j < count_; ++j) {
        const Operand& other = list_[j];
        if (&other == &out || disjoint(out.memory, other.memory)) continue;
        return invalid_argument("{} [{}, {}) overlaps {} [{}, {})", out.name, hex(out.memory.begin),
                                hex(out.memory.end()), other.name, hex(other.memory.begin),
                                hex(other.memory.end()));
      }
    }
    return {};
  }
  bool failed() const { return !status_.ok(); }
  Status take_status() { return std::move(status_); }

 private:
  void fail(Status status) {
    if (!failed()) status_ = std::move(status);
  }
  void tensor(TensorId t, const void* pointer, bool written) {
    const int size = size_of(problem_.dtype);
    add(name_of(t), footprint_of(pointer, problem_.extents(t), problem_.stride(t), size), size,
        true, written);
  }
  void add(const char* name, const Footprint& memory, int alignment, bool required, bool written) {
    if (failed() || memory.bytes == 0) return;
    if (memory.begin == 0) {
      if (required) fail(invalid_argument("{} is null", name));
      return;
    }
    if (memory.overflow) {
      fail({StatusCode::kOverflow, format("{} is {}; it reaches past the end of the address space",
                                          name, hex(memory.begin))});
    } else if (memory.begin % static_cast<uint64_t>(alignment) != 0) {
      fail(invalid_argument("{} is {}; it must be aligned to {} bytes", name, hex(memory.begin),
                            alignment));
    } else {
      list_[count_] = {name, memory, written};
      if (written) outputs_[num_outputs_++] = &list_[count_];
      ++count_;
    }
  }

  const AttentionProblem& problem_;
  Status status_;
  Operand list_[kMostOperands];
  const Operand* outputs_[kMostOutputs] = {};
  int count_ = 0;
  int num_outputs_ = 0;
};

Status check_workspace(const Plan& plan, const void* workspace, int64_t bytes) {
  const int64_t needed = plan.workspace_bytes;
  if (needed == 0) return {};
  const auto address = reinterpret_cast<uintptr_t>(workspace);
  if (workspace == nullptr) {
    return {StatusCode::kWorkspace, format("workspace is null; the plan needs {} bytes", needed)};
  }
  if (bytes < needed) {
    return {StatusCode::kWorkspace,
            format("workspace_bytes is {}; the plan needs {} bytes", bytes, needed)};
  }
  if (address % kWorkspaceAlign != 0) {
    return {StatusCode::kWorkspace,
            format("workspace is {}; it must be aligned to {} bytes (the plan needs {} bytes)",
                   hex(address), kWorkspaceAlign, needed)};
  }
  return {};
}

// A pointer or number that the problem has no use for is an error, never ignored.
template <class Args>
Status check_unused(const Plan& plan, const Args& args) {
  const AttentionProblem& p = plan.problem;
  if (!p.alibi && args.alibi_slopes != nullptr) {
    return invalid_argument("alibi_slopes is given, but the problem has no alibi");
  }
  if (!p.alibi && args.alibi_batch_stride != 0) {
    return invalid_argument("alibi_batch_stride is {}, but the problem has no alibi",
                            args.alibi_batch_stride);
  }
  if (args.alibi_batch_stride < 0) {
    return invalid_argument("alibi_batch_stride is {}; it must be >= 0", args.alibi_batch_stride);
  }
  if (!p.varlen && (args.cu_seqlens_q != nullptr || args.cu_seqlens_k != nullptr)) {
    return invalid_argument("{} is given, but the problem is not varlen",
                            args.cu_seqlens_q != nullptr ? "cu_seqlens_q" : "cu_seqlens_k");
  }
  if (plan.device.kind == DeviceKind::kCpu && args.stream != nullptr) {
    return invalid_argument("stream is {}; it must be null on the CPU",
                            hex(reinterpret_cast<uintptr_t>(args.stream)));
  }
  if (args.pool != nullptr && args.pool->parallel_for == nullptr) {
    return invalid_argument("pool->parallel_for is null");
  }
  return {};
}

Status check_lengths(const char* side, const int32_t* cu_seqlens, int64_t batch, int64_t total,
                     int64_t max_seqlen) {
  if (cu_seqlens[0] != 0) {
    return invalid_argument("cu_seqlens_{}[0] is {}; it must be 0", side, cu_seqlens[0]);
  }
  for (int64_t i = 0; i < batch; ++i) {
    const int64_t length = int64_t{cu_seqlens[i + 1]} - cu_seqlens[i];
    if (length < 0) {
      return invalid_argument("cu_seqlens_{}[{}] is {}; it is less than the entry before, {}", side,
                              i + 1, cu_seqlens[i + 1], cu_seqlens[i]);
    }
    if (length > max_seqlen) {
      return invalid_argument(
          "cu_seqlens_{}: length {} of sequence {} is more than max_seqlen_{}, {}", side, length, i,
          side, max_seqlen);
    }
  }
  if (cu_seqlens[batch] != total) {
    return invalid_argument("cu_seqlens_{}[{}] is {}; it must be total_{}, {}", side, batch,
                            cu_seqlens[batch], side, total);
  }
  return {};
}

Status check_alibi_extent(const AttentionProblem& p, int64_t batch_stride, int64_t& count) {
  if (__builtin_mul_overflow(p.batch > 0 ? p.batch - 1 : 0, batch_stride, &count) ||
      __builtin_add_overflow(count, p.num_heads, &count)) {
    return {StatusCode::kOverflow,
            format("alibi_batch_stride is {}; times batch {} it does not fit into 64 bits",
                   batch_stride, p.batch)};
  }
  return {};
}

// What forward and backward have in common, after their tensors have been gathered.
template <class Args>
Status check_rest(const Plan& plan, const Args& args, Operands& operands) {
  const AttentionProblem& p = plan.problem;
  if (Status s = check_unused(plan, args); !s.ok()) return s;
  if (p.alibi) {
    int64_t count = 0;
    if (Status s = check_alibi_extent(p, args.alibi_batch_stride, count); !s.ok()) return s;
    operands.array("alibi_slopes", args.alibi_slopes, count, sizeof(float));
  }
  if (p.varlen) {
    operands.array("cu_seqlens_q", args.cu_seqlens_q, p.batch + 1, sizeof(int32_t));
    operands.array("cu_seqlens_k", args.cu_seqlens_k, p.batch + 1, sizeof(int32_t));
  }
  if (operands.failed()) return operands.take_status();
  if (Status s = check_workspace(plan, args.workspace, args.workspace_bytes); !s.ok()) return s;
  operands.written_array("workspace", args.workspace, static_cast<uint64_t>(plan.workspace_bytes),
                         kWorkspaceAlign);
  if (operands.failed()) return operands.take_status();
  if (Status s = operands.check_overlap(); !s.ok()) return s;
  if (p.varlen && plan.device.kind == DeviceKind::kCpu) {
    Status s = check_lengths("q", args.cu_seqlens_q, p.batch, p.total_q, p.max_seqlen_q);
    if (!s.ok()) return s;
    return check_lengths("k", args.cu_seqlens_k, p.batch, p.total_k, p.max_seqlen_k);
  }
  return {};
}

}  // namespace

Status check_arguments(const Plan& plan, const ForwardArgs& args) {
  Operands operands(plan.problem);
  operands.input(TensorId::kQ, args.q);
  operands.input(TensorId::kK, args.k);
  operands.input(TensorId::kV, args.v);
  operands.output(TensorId::kO, args.o);
  operands.written_array("lse", args.lse,
                         static_cast<uint64_t>(plan.problem.num_rows()) * sizeof(float),
                         sizeof(float));
  return check_rest(plan, args, operands);
}

Status check_arguments(const Plan& plan, const BackwardArgs& args) {
  Operands operands(plan.problem);
  operands.input(TensorId::kQ, args.q);
  operands.input(TensorId::kK, args.k);
  operands.input(TensorId::kV, args.v);
  operands.input(TensorId::kO, args.o);
  operands.input(TensorId::kDo, args.do_);
  operands.array("lse", args.lse, plan.problem.num_rows(), sizeof(float));
  operands.output(TensorId::kDq, args.dq);
  operands.output(TensorId::kDk, args.dk);
  operands.output(TensorId::kDv, args.dv);
  return check_rest(plan, args, operands);
}

}  // namespace tilewise
