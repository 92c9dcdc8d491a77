// What can be asked of the library: problem text, kernels and their reasons, devices, versions.
#include <cstring>
#include <string>

#include "capi/boundary.h"
#include "capi/convert.h"
#include "capi/library.h"
#include "capi/struct_size.h"
#include "core/plan.h"
#include "core/problem.h"
#include "cpu/cpu_device.h"
#include "cpu/parallel.h"

#if defined(TILEWISE_USE_CUDA)
#include "cuda/device.h"
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#endif

using namespace tilewise;        // NOLINT(google-build-using-namespace): this file is the boundary
using namespace tilewise::capi;  // NOLINT(google-build-using-namespace)

namespace {

// At most `capacity` bytes with the final 0, and the size of the whole.
Status copy_text(std::string_view text, char* buffer, size_t capacity, size_t* needed) {
  if (buffer == nullptr && capacity != 0) {
    return invalid_argument("buffer is null, but capacity is {}", capacity);
  }
  if (capacity > 0) {
    const size_t size = text.size() < capacity ? text.size() : capacity - 1;
    std::memcpy(buffer, text.data(), size);
    buffer[size] = '\0';
  }
  if (needed != nullptr) *needed = text.size() + 1;
  return {};
}

template <size_t kCapacity>
void copy_name(char (&out)[kCapacity], std::string_view text) {
  const size_t size = text.size() < kCapacity ? text.size() : kCapacity - 1;
  std::memcpy(out, text.data(), size);
  out[size] = '\0';
}

std::string processor_name() {
#if defined(__x86_64__)
  unsigned words[12] = {};
  if (static_cast<unsigned>(__get_cpuid_max(0x80000000u, nullptr)) >= 0x80000004u) {  // clang: int
    for (unsigned i = 0; i < 3; ++i) {
      unsigned* w = words + 4 * i;
      __get_cpuid(0x80000002u + i, w, w + 1, w + 2, w + 3);
    }
    char text[sizeof words + 1] = {};
    std::memcpy(text, words, sizeof words);
    std::string_view name = text;
    while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    if (!name.empty()) return std::string(name);
  }
  return "x86-64 processor";
#else
  return "aarch64 processor";
#endif
}

std::string isa_note(CpuIsa in_use) {
  if (in_use == cpu::best_isa()) return cpu::why_not_higher_isa();
  return format("TILEWISE_CPU_ISA is {}; the best here is {}", name_of(in_use),
                name_of(cpu::best_isa()));
}

// How the chosen kernel divides its work.
std::string describe(const Plan& plan) {
  std::string text = format("{} thread{}", plan.shape.threads, plan.shape.threads == 1 ? "" : "s");
  if (plan.shape.block_rows > 0) text += format(", blocks of {} rows", plan.shape.block_rows);
  if (plan.shape.num_tasks > 0) text += format(", {} tasks", plan.shape.num_tasks);
  if (plan.shape.num_splits > 1) text += format(", {} splits", plan.shape.num_splits);
  return text + format(", workspace {} bytes", plan.workspace_bytes);
}

std::string explain(const std::vector<Candidate>& candidates, const Result<Plan>& plan) {
  std::string text;
  for (const auto& [entry, answer] : candidates) {
    if (plan.ok() && plan->entry == entry) {
      text += format("{}\tchosen\t{}\n", entry->name, describe(*plan));
    } else if (answer.yes) {
      text += format("{}\twould run\t{}\n", entry->name, entry->summary);
    } else {
      text += format("{}\tno\t{}\n", entry->name, answer.reason);
    }
  }
  return text;
}

const KernelEntry* entry_at(int32_t index) {
  const auto entries = library_registry().entries();
  return index >= 0 && static_cast<size_t>(index) < entries.size() ? entries[index] : nullptr;
}

}  // namespace

tilewise_status tilewise_problem_parse(const char* text, tilewise_problem* problem) {
  return guarded([&]() -> Status {
    if (text == nullptr) return invalid_argument("text is null");
    if (Status s = check_struct_size("problem", problem, kFirstProblemSize); !s.ok()) return s;
    const Result<AttentionProblem> parsed = parse_problem(text);
    if (!parsed) return parsed.status();
    write_problem(*parsed, problem);
    return {};
  });
}

tilewise_status tilewise_problem_print(const tilewise_problem* problem, char* buffer,
                                       size_t capacity, size_t* needed) {
  return guarded([&]() -> Status {
    AttentionProblem p;
    if (Status s = problem_of(problem, p); !s.ok()) return s;
    return copy_text(print(p), buffer, capacity, needed);
  });
}

tilewise_status tilewise_explain(const tilewise_problem* problem,
                                 const tilewise_plan_options* options, char* buffer,
                                 size_t capacity, size_t* needed) {
  return guarded([&]() -> Status {
    AttentionProblem p;
    if (Status s = problem_of(problem, p); !s.ok()) return s;
    Device device;
    PlanOptions plan_options;
    if (Status s = options_of(options, device, plan_options); !s.ok()) return s;
    const Registry& registry = library_registry();
    const Result<Plan> plan = make_plan(p, device, plan_options, registry);
    // No kernel is an answer here; a kernel forced by a name that does not exist is a mistake.
    if (!plan && plan.status().code() != StatusCode::kUnsupported) return plan.status();
    return copy_text(explain(registry.candidates(p, device), plan), buffer, capacity, needed);
  });
}

int32_t tilewise_kernel_count(void) {
  int32_t count = 0;
  guarded([&]() -> Status {
    count = static_cast<int32_t>(library_registry().entries().size());
    return {};
  });
  return count;
}

const char* tilewise_kernel_name(int32_t index) {
  const char* name = nullptr;
  guarded([&]() -> Status {
    if (const KernelEntry* entry = entry_at(index)) name = entry->name.data();
    return {};
  });
  return name;
}

const char* tilewise_kernel_summary(int32_t index) {
  const char* summary = nullptr;
  guarded([&]() -> Status {
    if (const KernelEntry* entry = entry_at(index)) summary = entry->summary.data();
    return {};
  });
  return summary;
}

tilewise_status tilewise_device_count(int32_t device_kind, int32_t* count) {
  return guarded([&]() -> Status {
    if (count == nullptr) return invalid_argument("count is null");
    if (Status s = check_device_kind(device_kind); !s.ok()) return s;
#if defined(TILEWISE_USE_CUDA)
    *count = device_kind == TILEWISE_CPU ? 1 : cuda::device_count();
#else
    *count = device_kind == TILEWISE_CPU ? 1 : 0;
#endif
    return {};
  });
}

tilewise_status tilewise_device_get_info(int32_t device_kind, int32_t device_index,
                                         tilewise_device_info* info) {
  return guarded([&]() -> Status {
    if (Status s = check_struct_size("info", info, kFirstDeviceInfoSize); !s.ok()) return s;
    Device device;
    if (Status s = find_device(device_kind, device_index, device); !s.ok()) return s;
    tilewise_device_info out = {};
    out.device_kind = device_kind;
    out.device_index = device_index;
    out.num_cores = device.num_cores;
    if (device.kind == DeviceKind::kCpu) {
      copy_name(out.name, processor_name());
      copy_name(out.isa, name_of(device.isa));
      copy_name(out.note, isa_note(device.isa));
    }
#if defined(TILEWISE_USE_CUDA)
    if (device.kind == DeviceKind::kCuda) {
      copy_name(out.name, cuda::device_name(device_index));
      copy_name(out.isa, format("sm_{}", device.sm));
    }
#endif
    write_struct(out, info);
    return {};
  });
}

const char* tilewise_backend_note(int32_t device_kind) {
#if defined(TILEWISE_USE_CUDA)
  if (device_kind == TILEWISE_CUDA) return cuda::backend_note();
#else
  if (device_kind == TILEWISE_CUDA) return "off: this build has no CUDA backend";
#endif
  if (device_kind != TILEWISE_CPU) return "no such device kind";
  return std::string_view(cpu::thread_backend()) == "openmp" ? "on: threads by OpenMP"
                                                             : "on: threads by std::thread";
}

const char* tilewise_last_error(void) { return last_error(); }

const char* tilewise_status_string(tilewise_status status) {
  switch (status) {
    case TILEWISE_OK:
      return "ok";
    case TILEWISE_INVALID_ARGUMENT:
      return "invalid argument";
    case TILEWISE_UNSUPPORTED:
      return "unsupported";
    case TILEWISE_OVERFLOW:
      return "overflow";
    case TILEWISE_WORKSPACE:
      return "workspace";
    case TILEWISE_OUT_OF_MEMORY:
      return "out of memory";
    case TILEWISE_DEVICE_ERROR:
      return "device error";
    case TILEWISE_INTERNAL_ERROR:
      return "internal error";
  }
  return "unknown status";
}

int32_t tilewise_version(void) {
  return 10000 * TILEWISE_VERSION_MAJOR + 100 * TILEWISE_VERSION_MINOR + TILEWISE_VERSION_PATCH;
}
