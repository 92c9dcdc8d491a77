#include "tests/capi/call.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace tilewise::test {
namespace {
constexpr std::align_val_t kAlign{64};
constexpr size_t kGuard = 2048;  // bytes around each block, more than any block but the workspace
constexpr size_t kWorkspaceRoom = 1 << 20;
constexpr int64_t kBatch = 2, kHeads = 4, kHeadsKv = 2, kDim = 8, kDimV = 12;
constexpr int64_t kSeqlenQ = 5, kSeqlenK = 7;
constexpr std::byte kPoison{0xA5};
}  // namespace

const char* name_of(Operand operand) {
  constexpr const char* kNames[kNumOperands] = {"q",
                                                "k",
                                                "v",
                                                "o",
                                                "do",
                                                "dq",
                                                "dk",
                                                "dv",
                                                "lse",
                                                "alibi_slopes",
                                                "cu_seqlens_q",
                                                "cu_seqlens_k",
                                                "workspace"};
  return kNames[static_cast<int>(operand)];
}

std::string Kind::name() const {
  std::string text = direction == TILEWISE_FORWARD ? "forward" : "backward";
  if (varlen) text += "_varlen";
  if (alibi) text += "_alibi";
  return dtype == TILEWISE_FP32 ? text : text + "_dtype" + std::to_string(dtype);
}

std::vector<Kind> all_kinds() {
  std::vector<Kind> kinds;
  for (const auto direction : {TILEWISE_FORWARD, TILEWISE_BACKWARD}) {
    for (const bool varlen : {false, true}) {
      for (const bool alibi : {false, true}) kinds.push_back({direction, varlen, alibi});
    }
  }
  return kinds;
}

void Call::Free::operator()(std::byte* p) const { ::operator delete(p, kAlign); }

Call::Call(const Kind& kind) : kind_(kind) {
  options.threads = 1;  // small calls, and threads that spin would cost more than they do
  problem.direction = kind.direction;
  problem.dtype = kind.dtype;
  problem.batch = kBatch;
  problem.num_heads = kHeads;
  problem.num_heads_kv = kHeadsKv;
  problem.head_dim = kDim;
  problem.head_dim_v = kDimV;
  problem.alibi = kind.alibi;
  problem.varlen = kind.varlen;
  if (kind.varlen) {
    problem.total_q = kBatch * kSeqlenQ;
    problem.total_k = kBatch * kSeqlenK;
    problem.max_seqlen_q = kSeqlenQ;
    problem.max_seqlen_k = kSeqlenK;
  } else {
    problem.seqlen_q = kSeqlenQ;
    problem.seqlen_k = kSeqlenK;
  }
  for (int i = 0; i < kNumOperands; ++i) {
    sizes_[i] = size_of_block(static_cast<Operand>(i));
    offsets_[i] = (arena_bytes_ + kGuard + 63) / 64 * 64;
    arena_bytes_ = offsets_[i] + sizes_[i] + kGuard;
  }
  arena_.reset(static_cast<std::byte*>(::operator new(arena_bytes_, kAlign)));
  reset();
}

size_t Call::size_of_block(Operand operand) const {
  const size_t element = kind_.dtype == TILEWISE_FP64 ? 8 : kind_.dtype == TILEWISE_FP32 ? 4 : 2;
  const auto tensor = [&](int64_t seqlen, int64_t heads, int64_t dim) {
    return static_cast<size_t>(kBatch * seqlen * heads * dim) * element;
  };
  switch (operand) {
    case Operand::kQ:
    case Operand::kDq:
      return tensor(kSeqlenQ, kHeads, kDim);
    case Operand::kK:
    case Operand::kDk:
      return tensor(kSeqlenK, kHeadsKv, kDim);
    case Operand::kV:
    case Operand::kDv:
      return tensor(kSeqlenK, kHeadsKv, kDimV);
    case Operand::kO:
    case Operand::kDo:
      return tensor(kSeqlenQ, kHeads, kDimV);
    case Operand::kLse:
      return kBatch * kSeqlenQ * kHeads * sizeof(float);
    case Operand::kSlopes:
      return kHeads * sizeof(float);
    case Operand::kCuQ:
    case Operand::kCuK:
      return (kBatch + 1) * sizeof(int32_t);
    case Operand::kWorkspace:
      return kWorkspaceRoom;
  }
  return 0;
}

std::vector<Operand> Call::operands() const {
  std::vector<Operand> all = {Operand::kQ, Operand::kK, Operand::kV, Operand::kO, Operand::kLse};
  if (kind_.direction == TILEWISE_BACKWARD) {
    all.insert(all.end(), {Operand::kDo, Operand::kDq, Operand::kDk, Operand::kDv});
  }
  if (kind_.alibi) all.push_back(Operand::kSlopes);
  if (kind_.varlen) all.insert(all.end(), {Operand::kCuQ, Operand::kCuK});
  if (workspace_needed_ > 0) all.push_back(Operand::kWorkspace);
  return all;
}

bool Call::is_output(Operand operand) const {
  if (operand == Operand::kWorkspace) return true;
  if (kind_.direction == TILEWISE_FORWARD) {
    return operand == Operand::kO || operand == Operand::kLse;
  }
  return operand == Operand::kDq || operand == Operand::kDk || operand == Operand::kDv;
}

void Call::set_pointer(Operand operand, void* pointer) {
  tilewise_forward_params& f = forward;
  tilewise_backward_params& b = backward;
  switch (operand) {
    case Operand::kQ:
      f.q = b.q = pointer;
      break;
    case Operand::kK:
      f.k = b.k = pointer;
      break;
    case Operand::kV:
      f.v = b.v = pointer;
      break;
    case Operand::kO:
      f.o = pointer;
      b.o = pointer;
      break;
    case Operand::kDo:
      b.do_ = pointer;
      break;
    case Operand::kDq:
      b.dq = pointer;
      break;
    case Operand::kDk:
      b.dk = pointer;
      break;
    case Operand::kDv:
      b.dv = pointer;
      break;
    case Operand::kLse:
      f.lse = static_cast<float*>(pointer);
      b.lse = static_cast<float*>(pointer);
      break;
    case Operand::kSlopes:
      f.alibi_slopes = b.alibi_slopes = static_cast<float*>(pointer);
      break;
    case Operand::kCuQ:
      f.cu_seqlens_q = b.cu_seqlens_q = static_cast<int32_t*>(pointer);
      break;
    case Operand::kCuK:
      f.cu_seqlens_k = b.cu_seqlens_k = static_cast<int32_t*>(pointer);
      break;
    case Operand::kWorkspace:
      f.workspace = b.workspace = pointer;
      break;
  }
}

void Call::reset() {
  forward = TILEWISE_FORWARD_PARAMS_INIT;
  backward = TILEWISE_BACKWARD_PARAMS_INIT;
  std::memset(arena_.get(), static_cast<int>(kPoison), arena_bytes_);
  for (int i = 0; i < kNumOperands; ++i) {
    const Operand operand = static_cast<Operand>(i);
    if (is_output(operand)) continue;
    std::memset(block(operand), 0, block_bytes(operand));
    // 0x3c3c is about 1 in fp16, and a small number in every other type.
    if (operand <= Operand::kDo) std::memset(block(operand), 0x3c, block_bytes(operand));
  }
  for (int32_t i = 0; i <= kBatch; ++i) {
    cu_seqlens(Operand::kCuQ)[i] = i * static_cast<int32_t>(kSeqlenQ);
    cu_seqlens(Operand::kCuK)[i] = i * static_cast<int32_t>(kSeqlenK);
  }
  for (const Operand operand : operands()) set_pointer(operand, block(operand));
  workspace_bytes() = workspace_needed_;
}

tilewise_status Call::create() {
  tilewise_plan_destroy(plan_);
  const tilewise_status status = tilewise_plan_create(&problem, &options, &plan_);
  if (status != TILEWISE_OK) return status;
  tilewise_plan_info info = TILEWISE_PLAN_INFO_INIT;
  const tilewise_status info_status = tilewise_plan_get_info(plan_, &info);
  workspace_needed_ = info.workspace_bytes;
  if (workspace_needed_ > kWorkspaceRoom) return TILEWISE_INTERNAL_ERROR;  // enlarge the room
  reset();
  return info_status;
}

tilewise_status Call::run() {
  return kind_.direction == TILEWISE_FORWARD ? tilewise_forward(plan_, &forward)
                                             : tilewise_backward(plan_, &backward);
}

void Call::snapshot() { snapshot_.assign(arena_.get(), arena_.get() + arena_bytes_); }

bool Call::untouched() const {
  return std::memcmp(snapshot_.data(), arena_.get(), arena_bytes_) == 0;
}

bool Call::outputs_written() const {
  for (const Operand operand : operands()) {
    if (!is_output(operand) || operand == Operand::kWorkspace) continue;
    const auto* bytes = static_cast<const std::byte*>(block(operand));
    if (std::all_of(bytes, bytes + block_bytes(operand),
                    [](std::byte b) { return b == kPoison; })) {
      return false;
    }
  }
  return true;
}

}  // namespace tilewise::test
