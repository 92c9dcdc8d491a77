#include "core/plan.h"

#include <cstdlib>

#include "core/registry.h"

namespace tilewise {
namespace {

Status no_kernel(const AttentionProblem& problem, const std::vector<Candidate>& candidates) {
  std::string message = format("no kernel computes \"{}\":", print(problem));
  for (const Candidate& c : candidates) {
    message += format("\n  {}: {}", c.entry->name, c.answer.reason);
  }
  return {StatusCode::kUnsupported, message};
}

Result<const KernelEntry*> forced(std::string_view name, const char* source,
                                  const AttentionProblem& problem, const Device& device,
                                  const Registry& registry) {
  const KernelEntry* entry = registry.find(name);
  if (entry == nullptr) {
    std::string known;
    for (const KernelEntry* e : registry.entries()) known += format(" {}", e->name);
    return invalid_argument("{} is \"{}\"; the kernels are:{}", source, name, known);
  }
  if (Answer answer = entry->supports(problem, device); !answer.yes) {
    return unsupported("{} is \"{}\", which does not compute \"{}\": {}", source, name,
                       print(problem), answer.reason);
  }
  return entry;
}

// No element to write, whatever the batch: 2^31 empty sequences cost no loop.
bool nothing_to_write(const AttentionProblem& p) {
  const int64_t keys = p.varlen ? p.total_k : p.batch * p.seqlen_k;
  return p.num_rows() == 0 && (!p.backward() || keys == 0);
}

Result<const KernelEntry*> choose(const AttentionProblem& problem, const Device& device,
                                  const PlanOptions& options, const Registry& registry) {
  if (!options.kernel.empty()) {
    return forced(options.kernel, "kernel", problem, device, registry);
  }
  const char* wanted = std::getenv("TILEWISE_KERNEL");
  if (wanted != nullptr && *wanted != '\0') {
    return forced(wanted, "TILEWISE_KERNEL", problem, device, registry);
  }
  for (const KernelEntry* entry : registry.entries()) {
    if (entry->supports(problem, device).yes) return entry;
  }
  return no_kernel(problem, registry.candidates(problem, device));
}

// A stride along one index steps nowhere, so it may be anything. Kernels scale and add strides
// without asking; for them it is the default layout's.
void settle_unused_strides(AttentionProblem& p) {
  for (int t = 0; t < kNumTensors; ++t) {
    const Extents e = p.extents(static_cast<TensorId>(t));
    const Strides usual = default_strides(p, static_cast<TensorId>(t));
    Strides& s = p.strides[t];
    if (e.batch <= 1) s.batch = usual.batch;
    if (e.seqlen <= 1) s.seqlen = usual.seqlen;
    if (e.heads <= 1) s.head = usual.head;
  }
}

}  // namespace

Result<Plan> make_plan(const AttentionProblem& problem, const Device& device,
                       const PlanOptions& options, const Registry& registry) {
  if (Status s = validate(problem); !s.ok()) return s;
  if (options.threads < 0 || options.threads > kMostThreads) {
    return invalid_argument("threads is {}; it must be in [0, {}] (0 is every core)",
                            options.threads, kMostThreads);
  }
  Plan plan;
  plan.problem = problem;
  settle_unused_strides(plan.problem);
  Result<const KernelEntry*> entry = choose(plan.problem, device, options, registry);
  if (!entry) return entry.status();

  plan.device = device;
  plan.entry = *entry;
  plan.shape.threads = options.threads > 0 ? options.threads : device.num_cores;
  if (Status s = plan.entry->shape(plan, options); !s.ok()) return s;
  return plan;
}

Status run_forward(const Plan& plan, const ForwardArgs& args) {
  if (plan.problem.backward()) {
    return invalid_argument("plan has direction backward; run the backward call");
  }
  if (Status s = check_arguments(plan, args); !s.ok()) return s;
  return nothing_to_write(plan.problem) ? Status() : plan.entry->forward(plan, args);
}

Status run_backward(const Plan& plan, const BackwardArgs& args) {
  if (!plan.problem.backward()) {
    return invalid_argument("plan has direction forward; run the forward call");
  }
  if (Status s = check_arguments(plan, args); !s.ok()) return s;
  return nothing_to_write(plan.problem) ? Status() : plan.entry->backward(plan, args);
}

}  // namespace tilewise
