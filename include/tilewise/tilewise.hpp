// Tilewise in C++20: values and RAII over the C ABI of tilewise.h, nothing more. Header only.
//
//     tilewise::Problem problem{.dtype = tilewise::bf16, .batch = 2, .seqlen_q = 4096,
//                               .num_heads = 32, .num_heads_kv = 8, .head_dim = 128,
//                               .mask = tilewise::causal()};
//     auto plan = tilewise::Plan::forward(problem);
//     if (!plan) return report(plan.error().message);
//     tilewise::Buffer workspace(plan->workspace_bytes());
//     if (auto status = plan->run({.q = q, .k = k, .v = v, .o = o, .lse = lse}, workspace);
//     !status)
//       return report(status.message());
//
// Nothing here throws except std::bad_alloc from the text of an error; run() neither allocates nor
// throws. What every field means stands in tilewise.h.
#ifndef TILEWISE_TILEWISE_HPP_
#define TILEWISE_TILEWISE_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "tilewise/tilewise.h"

namespace tilewise {
inline namespace v0 {

enum class DType : int32_t {
  fp16 = TILEWISE_FP16,
  bf16 = TILEWISE_BF16,
  fp32 = TILEWISE_FP32,
  fp64 = TILEWISE_FP64
};
inline constexpr DType fp16 = DType::fp16, bf16 = DType::bf16, fp32 = DType::fp32,
                       fp64 = DType::fp64;

enum class Corner : int32_t { bottom_right = TILEWISE_BOTTOM_RIGHT, top_left = TILEWISE_TOP_LEFT };

struct Mask {
  int32_t window_left = -1;  // -1: unbounded
  int32_t window_right = -1;
  Corner align = Corner::bottom_right;
};
constexpr Mask full() { return {}; }
constexpr Mask causal(Corner align = Corner::bottom_right) { return {-1, 0, align}; }
constexpr Mask window(int32_t left, int32_t right, Corner align = Corner::bottom_right) {
  return {left, right, align};
}

// Elements; the dim stride is 1. Default: contiguous (batch, seqlen, head, dim).
struct Strides {
  int64_t batch = 0, seqlen = 0, head = 0;
};
// (batch, head, seqlen, dim) in memory.
constexpr Strides bhsd(int64_t seqlen, int64_t heads, int64_t dim) {
  return {heads * seqlen * dim, dim, seqlen * dim};
}

// Lengths that differ by sequence; the tensors are (total, head, dim).
struct Varlen {
  int64_t total_q = 0, total_k = 0;
  int64_t max_seqlen_q = 0, max_seqlen_k = 0;
};

inline constexpr int64_t kSame = -1;  // as the field that it defaults to

struct Problem {
  DType dtype = fp32;
  int64_t batch = 1;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = kSame;  // seqlen_q
  int64_t num_heads = 1;
  int64_t num_heads_kv = kSame;  // num_heads
  int64_t head_dim = 0;
  int64_t head_dim_v = kSame;  // head_dim
  Mask mask{};
  std::optional<float> softmax_scale{};  // 1/sqrt(head_dim)
  float softcap = 0.0f;
  bool alibi = false;
  bool deterministic = false;
  std::optional<Varlen> varlen{};  // instead of seqlen_q and seqlen_k
  std::optional<Strides> q{}, k{}, v{}, o{}, do_{}, dq{}, dk{}, dv{};
};

// Where a plan runs. `kernel` forces one by name.
struct Device {
  int32_t kind = TILEWISE_CPU;
  int32_t index = 0;
  int32_t threads = 0;  // CPU: most threads of a run; 0: every core
  const char* kernel = nullptr;
};
constexpr Device cpu(int32_t threads = 0) { return {TILEWISE_CPU, 0, threads, nullptr}; }
constexpr Device cuda(int32_t index) { return {TILEWISE_CUDA, index, 0, nullptr}; }

// What a run returns: true when it went well.
class [[nodiscard]] Status {
 public:
  explicit Status(tilewise_status code) : code_(code) {}
  explicit operator bool() const { return code_ == TILEWISE_OK; }
  tilewise_status code() const { return code_; }
  // One sentence with the field and the value; valid until the next failure on this thread.
  const char* message() const { return code_ == TILEWISE_OK ? "" : tilewise_last_error(); }

 private:
  tilewise_status code_;
};

struct Error {
  tilewise_status code = TILEWISE_OK;
  std::string message;
};

// A value, or the error that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(tilewise_status code) : state_(Error{code, tilewise_last_error()}) {}

  explicit operator bool() const { return state_.index() == 0; }
  T& operator*() { return *std::get_if<0>(&state_); }
  const T& operator*() const { return *std::get_if<0>(&state_); }
  T* operator->() { return std::get_if<0>(&state_); }
  const T* operator->() const { return std::get_if<0>(&state_); }
  const Error& error() const { return *std::get_if<1>(&state_); }  // only when there is no value

 private:
  std::variant<T, Error> state_;
};

// Memory for a run, on the CPU: 64-byte aligned, contents undefined. Null when it could not be had,
// which the run then reports.
class Buffer {
 public:
  explicit Buffer(uint64_t bytes)
      : data_(bytes == 0 ? nullptr : ::operator new(bytes, kAlign, std::nothrow)), bytes_(bytes) {}
  void* data() const { return data_.get(); }
  uint64_t bytes() const { return data_ ? bytes_ : 0; }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(void* p) const { ::operator delete(p, kAlign); }
  };
  std::unique_ptr<void, Free> data_;
  uint64_t bytes_;
};

struct Workspace {
  Workspace() = default;
  Workspace(void* pointer, uint64_t size) : data(pointer), bytes(size) {}
  Workspace(const Buffer& buffer)  // NOLINT(google-explicit-constructor)
      : data(buffer.data()), bytes(buffer.bytes()) {}
  void* data = nullptr;
  uint64_t bytes = 0;
};

struct ForwardTensors {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* o = nullptr;
  float* lse = nullptr;
  const float* alibi_slopes = nullptr;
  int64_t alibi_batch_stride = 0;
  const int32_t* cu_seqlens_q = nullptr;
  const int32_t* cu_seqlens_k = nullptr;
};

struct BackwardTensors {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* o = nullptr;
  const void* do_ = nullptr;
  const float* lse = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  const float* alibi_slopes = nullptr;
  int64_t alibi_batch_stride = 0;
  const int32_t* cu_seqlens_q = nullptr;
  const int32_t* cu_seqlens_k = nullptr;
};

namespace detail {

inline tilewise_strides strides(const std::optional<Strides>& s) {
  if (!s) return {0, 0, 0, 0};
  return {s->batch, s->seqlen, s->head, 1};
}

inline tilewise_problem c_problem(const Problem& p, tilewise_direction direction) {
  tilewise_problem c = TILEWISE_PROBLEM_INIT;
  c.direction = direction;
  c.dtype = static_cast<int32_t>(p.dtype);
  c.batch = p.batch;
  c.seqlen_q = p.seqlen_q;
  c.seqlen_k = p.seqlen_k == kSame ? p.seqlen_q : p.seqlen_k;
  c.num_heads = p.num_heads;
  c.num_heads_kv = p.num_heads_kv == kSame ? p.num_heads : p.num_heads_kv;
  c.head_dim = p.head_dim;
  c.head_dim_v = p.head_dim_v == kSame ? p.head_dim : p.head_dim_v;
  c.window_left = p.mask.window_left;
  c.window_right = p.mask.window_right;
  c.align = static_cast<int32_t>(p.mask.align);
  c.has_softmax_scale = p.softmax_scale.has_value();
  c.softmax_scale = p.softmax_scale.value_or(0.0f);
  c.softcap = p.softcap;
  c.alibi = p.alibi;
  c.deterministic = p.deterministic;
  c.varlen = p.varlen.has_value();
  const Varlen lengths = p.varlen.value_or(Varlen{});
  c.total_q = lengths.total_q;
  c.total_k = lengths.total_k;
  c.max_seqlen_q = lengths.max_seqlen_q;
  c.max_seqlen_k = lengths.max_seqlen_k;
  c.q = strides(p.q);
  c.k = strides(p.k);
  c.v = strides(p.v);
  c.o = strides(p.o);
  c.do_ = strides(p.do_);
  c.dq = strides(p.dq);
  c.dk = strides(p.dk);
  c.dv = strides(p.dv);
  return c;
}

inline tilewise_plan_options c_options(const Device& device) {
  tilewise_plan_options c = TILEWISE_PLAN_OPTIONS_INIT;
  c.device_kind = device.kind;
  c.device_index = device.index;
  c.threads = device.threads;
  c.kernel = device.kernel;
  return c;
}

template <class Params, class Tensors>
void fill_params(Params& c, const Tensors& t, const Workspace& workspace, void* stream,
                 const tilewise_thread_pool* pool) {
  c.q = t.q;
  c.k = t.k;
  c.v = t.v;
  c.o = t.o;
  c.lse = t.lse;
  c.alibi_slopes = t.alibi_slopes;
  c.alibi_batch_stride = t.alibi_batch_stride;
  c.cu_seqlens_q = t.cu_seqlens_q;
  c.cu_seqlens_k = t.cu_seqlens_k;
  c.workspace = workspace.data;
  c.workspace_bytes = workspace.bytes;
  c.stream = stream;
  c.pool = pool;
}

struct DestroyPlan {
  void operator()(tilewise_plan* plan) const { tilewise_plan_destroy(plan); }
};

}  // namespace detail

// The kernel chosen for a problem. Immutable: any number of threads may run it at the same time,
// each with its own workspace.
class PlanBase {
 public:
  const char* kernel() const { return info_.kernel; }
  int32_t threads() const { return info_.threads; }
  int32_t num_splits() const { return info_.num_splits; }
  uint64_t workspace_bytes() const { return info_.workspace_bytes; }
  uint64_t workspace_align() const { return info_.workspace_align; }
  const tilewise_plan* get() const { return plan_.get(); }

 protected:
  tilewise_status create(const Problem& problem, tilewise_direction direction,
                         const Device& device) {
    const tilewise_problem c = detail::c_problem(problem, direction);
    const tilewise_plan_options options = detail::c_options(device);
    tilewise_plan* plan = nullptr;
    const tilewise_status status = tilewise_plan_create(&c, &options, &plan);
    plan_.reset(plan);
    return status == TILEWISE_OK ? tilewise_plan_get_info(plan, &info_) : status;
  }

 private:
  std::unique_ptr<tilewise_plan, detail::DestroyPlan> plan_;
  tilewise_plan_info info_ = TILEWISE_PLAN_INFO_INIT;
};

class ForwardPlan : public PlanBase {
 public:
  Status run(const ForwardTensors& tensors, const Workspace& workspace = {}, void* stream = nullptr,
             const tilewise_thread_pool* pool = nullptr) const {
    tilewise_forward_params c = TILEWISE_FORWARD_PARAMS_INIT;
    detail::fill_params(c, tensors, workspace, stream, pool);
    return Status(tilewise_forward(get(), &c));
  }

 private:
  friend struct Plan;
};

class BackwardPlan : public PlanBase {
 public:
  Status run(const BackwardTensors& tensors, const Workspace& workspace = {},
             void* stream = nullptr, const tilewise_thread_pool* pool = nullptr) const {
    tilewise_backward_params c = TILEWISE_BACKWARD_PARAMS_INIT;
    detail::fill_params(c, tensors, workspace, stream, pool);
    c.do_ = tensors.do_;
    c.dq = tensors.dq;
    c.dk = tensors.dk;
    c.dv = tensors.dv;
    return Status(tilewise_backward(get(), &c));
  }

 private:
  friend struct Plan;
};

struct Plan {
  static Result<ForwardPlan> forward(const Problem& problem, const Device& device = {}) {
    ForwardPlan plan;
    const tilewise_status status = plan.create(problem, TILEWISE_FORWARD, device);
    if (status != TILEWISE_OK) return status;
    return Result<ForwardPlan>(std::move(plan));
  }
  static Result<BackwardPlan> backward(const Problem& problem, const Device& device = {}) {
    BackwardPlan plan;
    const tilewise_status status = plan.create(problem, TILEWISE_BACKWARD, device);
    if (status != TILEWISE_OK) return status;
    return Result<BackwardPlan>(std::move(plan));
  }
};

enum class Direction : int32_t { forward = TILEWISE_FORWARD, backward = TILEWISE_BACKWARD };

namespace detail {

// Calls f(buffer, capacity, &needed) twice: for the size, then for the text.
template <class F>
Result<std::string> text_of(const F& f) {
  size_t needed = 0;
  if (const tilewise_status s = f(nullptr, 0, &needed); s != TILEWISE_OK) return s;
  std::string text(needed, '\0');
  if (const tilewise_status s = f(text.data(), needed, &needed); s != TILEWISE_OK) return s;
  text.resize(text.find('\0') == std::string::npos ? text.size() : text.find('\0'));
  return text;
}

}  // namespace detail

// The one-line text form, e.g. "bf16 b2 sq4096 sk4096 h32 hk8 d128 causal".
inline Result<std::string> to_text(const Problem& problem,
                                   Direction direction = Direction::forward) {
  const tilewise_problem c = detail::c_problem(problem, static_cast<tilewise_direction>(direction));
  return detail::text_of([&](char* buffer, size_t capacity, size_t* needed) {
    return tilewise_problem_print(&c, buffer, capacity, needed);
  });
}

// One line for each kernel: "<name>\t<chosen|would run|no>\t<reason>".
inline Result<std::string> explain(const Problem& problem, const Device& device = {},
                                   Direction direction = Direction::forward) {
  const tilewise_problem c = detail::c_problem(problem, static_cast<tilewise_direction>(direction));
  const tilewise_plan_options options = detail::c_options(device);
  return detail::text_of([&](char* buffer, size_t capacity, size_t* needed) {
    return tilewise_explain(&c, &options, buffer, capacity, needed);
  });
}

// Devices of one kind (tilewise_device_kind); 0 when the backend is off.
inline int32_t device_count(int32_t kind) {
  int32_t count = 0;
  return tilewise_device_count(kind, &count) == TILEWISE_OK ? count : 0;
}

inline Result<tilewise_device_info> device_info(const Device& device = {}) {
  tilewise_device_info info{};
  info.struct_size = sizeof info;
  const tilewise_status status = tilewise_device_get_info(device.kind, device.index, &info);
  if (status != TILEWISE_OK) return status;
  return info;
}

// Joins attention over disjoint sets of keys; see tilewise_merge_params.
struct MergeTensors {
  const void* const* o_parts = nullptr;
  const float* const* lse_parts = nullptr;
  int64_t num_parts = 0;
  void* o = nullptr;
  float* lse = nullptr;
  int64_t batch = 1, seqlen = 0, num_heads = 1, head_dim = 0;
  DType part_dtype = fp32;
  DType dtype = fp32;
  std::optional<Strides> part_strides{}, o_strides{};
};

inline Status merge(const MergeTensors& t) {
  tilewise_merge_params c = TILEWISE_MERGE_PARAMS_INIT;
  c.num_parts = t.num_parts;
  c.o_parts = t.o_parts;
  c.lse_parts = t.lse_parts;
  c.o = t.o;
  c.lse = t.lse;
  c.part_dtype = static_cast<int32_t>(t.part_dtype);
  c.dtype = static_cast<int32_t>(t.dtype);
  c.batch = t.batch;
  c.seqlen = t.seqlen;
  c.num_heads = t.num_heads;
  c.head_dim = t.head_dim;
  c.part_strides = detail::strides(t.part_strides);
  c.o_strides = detail::strides(t.o_strides);
  return Status(tilewise_merge(&c));
}

}  // namespace v0
}  // namespace tilewise

#endif  // TILEWISE_TILEWISE_HPP_
