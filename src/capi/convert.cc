#include "capi/convert.h"

#include "capi/struct_size.h"
#include "cpu/cpu_device.h"

#if defined(TILEWISE_USE_CUDA)
#include "cuda/device.h"
#endif

namespace tilewise::capi {
namespace {

Status flag_of(const char* field, int32_t given, bool& flag) {
  if (given != 0 && given != 1)
    return invalid_argument("{} is {}; it must be 0 or 1", field, given);
  flag = given == 1;
  return {};
}

Status flags_of(const tilewise_problem& given, AttentionProblem& p, bool& causal) {
  struct Flag {
    const char* field;
    int32_t given;
    bool& flag;
  };
  const Flag flags[] = {{"causal", given.causal, causal},
                        {"has_softmax_scale", given.has_softmax_scale, p.has_softmax_scale},
                        {"alibi", given.alibi, p.alibi},
                        {"deterministic", given.deterministic, p.deterministic},
                        {"varlen", given.varlen, p.varlen}};
  for (const Flag& f : flags) {
    if (Status s = flag_of(f.field, f.given, f.flag); !s.ok()) return s;
  }
  return {};
}

// The strides of a tensor, in the order of TensorId.
constexpr tilewise_strides tilewise_problem::*kStrideFields[kNumTensors] = {
    &tilewise_problem::q,   &tilewise_problem::k,  &tilewise_problem::v,  &tilewise_problem::o,
    &tilewise_problem::do_, &tilewise_problem::dq, &tilewise_problem::dk, &tilewise_problem::dv};

Status all_strides_of(const tilewise_problem& given, AttentionProblem& p) {
  for (int i = 0; i < kNumTensors; ++i) {
    const TensorId t = static_cast<TensorId>(i);
    const tilewise_strides& strides = given.*kStrideFields[i];
    if (Status s = strides_of(name_of(t), strides, default_strides(p, t), p.stride(t)); !s.ok()) {
      return s;
    }
    if (p.varlen && strides.batch != 0) {
      return invalid_argument("batch stride of {} is {}; it must be 0 when varlen", name_of(t),
                              strides.batch);
    }
  }
  return {};
}

}  // namespace

Status strides_of(const char* name, const tilewise_strides& given, const Strides& contiguous,
                  Strides& strides) {
  if (given.batch == 0 && given.seqlen == 0 && given.head == 0 && given.dim == 0) {
    strides = contiguous;
    return {};
  }
  if (given.dim != 1) {
    return invalid_argument("dim stride of {} is {}; it must be 1 (or all four strides 0)", name,
                            given.dim);
  }
  struct Axis {
    const char* name;
    int64_t stride;
  };
  for (const Axis& axis :
       {Axis{"batch", given.batch}, Axis{"seqlen", given.seqlen}, Axis{"head", given.head}}) {
    if (axis.stride < 0) {
      return invalid_argument("{} stride of {} is {}; it must be >= 0", axis.name, name,
                              axis.stride);
    }
  }
  strides = {given.batch, given.seqlen, given.head};
  return {};
}

Status problem_of(const tilewise_problem* given_or_null, AttentionProblem& p) {
  tilewise_problem given = TILEWISE_PROBLEM_INIT;
  if (Status s = read_struct("problem", given_or_null, kFirstProblemSize, given); !s.ok()) return s;
  bool causal = false;
  if (Status s = flags_of(given, p, causal); !s.ok()) return s;
  if (causal && given.window_right > 0) {
    return invalid_argument("window_right is {}; it must be 0 or -1 when causal is 1",
                            given.window_right);
  }
  if (!p.has_softmax_scale && given.softmax_scale != 0.0f) {
    return invalid_argument("softmax_scale is {}, but has_softmax_scale is 0", given.softmax_scale);
  }
  p.direction = static_cast<Direction>(given.direction);  // validate() knows the values
  p.dtype = static_cast<DType>(given.dtype);
  p.batch = given.batch;
  p.seqlen_q = given.seqlen_q;
  p.seqlen_k = given.seqlen_k;
  p.num_heads = given.num_heads;
  p.num_heads_kv = given.num_heads_kv;
  p.head_dim = given.head_dim;
  p.head_dim_v = given.head_dim_v;
  p.mask.window_left = given.window_left;
  p.mask.window_right = causal && given.window_right == kUnbounded ? 0 : given.window_right;
  p.mask.align = static_cast<Corner>(given.align);
  p.softmax_scale = given.softmax_scale;
  p.softcap = given.softcap;
  p.total_q = given.total_q;
  p.total_k = given.total_k;
  p.max_seqlen_q = given.max_seqlen_q;
  p.max_seqlen_k = given.max_seqlen_k;
  if (Status s = all_strides_of(given, p); !s.ok()) return s;
  return validate(p);
}

void write_problem(const AttentionProblem& p, tilewise_problem* given) {
  tilewise_problem out = TILEWISE_PROBLEM_INIT;
  out.direction = static_cast<int32_t>(p.direction);
  out.dtype = static_cast<int32_t>(p.dtype);
  out.batch = p.batch;
  out.seqlen_q = p.seqlen_q;
  out.seqlen_k = p.seqlen_k;
  out.num_heads = p.num_heads;
  out.num_heads_kv = p.num_heads_kv;
  out.head_dim = p.head_dim;
  out.head_dim_v = p.head_dim_v;
  out.causal = p.mask.is_causal();
  out.window_left = p.mask.window_left;
  out.window_right = p.mask.window_right;
  out.align = static_cast<int32_t>(p.mask.align);
  out.has_softmax_scale = p.has_softmax_scale;
  out.softmax_scale = p.softmax_scale;
  out.softcap = p.softcap;
  out.alibi = p.alibi;
  out.deterministic = p.deterministic;
  out.varlen = p.varlen;
  out.total_q = p.total_q;
  out.total_k = p.total_k;
  out.max_seqlen_q = p.max_seqlen_q;
  out.max_seqlen_k = p.max_seqlen_k;
  for (int i = 0; i < kNumTensors; ++i) {
    const TensorId t = static_cast<TensorId>(i);
    if (p.stride(t) == default_strides(p, t)) continue;
    out.*kStrideFields[i] = {p.stride(t).batch, p.stride(t).seqlen, p.stride(t).head, 1};
  }
  write_struct(out, given);
}

Status check_device_kind(int32_t device_kind) {
  if (device_kind != TILEWISE_CPU && device_kind != TILEWISE_CUDA) {
    return invalid_argument("device_kind is {}; it must be 0 (CPU) or 1 (CUDA)", device_kind);
  }
  return {};
}

Status find_device(int32_t device_kind, int32_t device_index, Device& device) {
  if (Status s = check_device_kind(device_kind); !s.ok()) return s;
  if (device_kind == TILEWISE_CUDA) {
#if defined(TILEWISE_USE_CUDA)
    const Result<Device> cuda = cuda::cuda_device(device_index);
    if (!cuda) return cuda.status();
    device = *cuda;
    return {};
#else
    return {StatusCode::kDevice, "device_kind is 1 (CUDA); this build has no CUDA backend"};
#endif
  }
  if (device_index != 0) {
    return invalid_argument("device_index is {}; it must be 0 for the CPU", device_index);
  }
  const Result<Device> cpu = cpu::cpu_device();
  if (!cpu) return cpu.status();
  device = *cpu;
  return {};
}

Status options_of(const tilewise_plan_options* given_or_null, Device& device,
                  PlanOptions& options) {
  tilewise_plan_options given = TILEWISE_PLAN_OPTIONS_INIT;
  if (given_or_null != nullptr) {
    Status s = read_struct("options", given_or_null, kFirstPlanOptionsSize, given);
    if (!s.ok()) return s;
  }
  if (given.reserved != 0) {
    return invalid_argument("options.reserved is {}; it must be 0", given.reserved);
  }
  options.threads = given.threads;
  if (given.kernel != nullptr) options.kernel = given.kernel;
  return find_device(given.device_kind, given.device_index, device);
}

}  // namespace tilewise::capi
