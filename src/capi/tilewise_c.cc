// Plans and runs.
#include <limits>
#include <memory>

#include "capi/boundary.h"
#include "capi/convert.h"
#include "capi/library.h"
#include "capi/struct_size.h"
#include "core/plan.h"

using namespace tilewise;        // NOLINT(google-build-using-namespace): this file is the boundary
using namespace tilewise::capi;  // NOLINT(google-build-using-namespace)

struct tilewise_plan {
  Plan plan;
};

namespace {

// More than any plan needs is as good as exactly enough.
int64_t clamped(uint64_t bytes) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return bytes > static_cast<uint64_t>(kMost) ? kMost : static_cast<int64_t>(bytes);
}

// The fields that forward and backward share.
template <class Args, class Params>
Args common_args_of(const Params& params, ThreadPool& pool) {
  Args args;
  args.q = params.q;
  args.k = params.k;
  args.v = params.v;
  args.o = params.o;
  args.lse = params.lse;
  args.alibi_slopes = params.alibi_slopes;
  args.alibi_batch_stride = params.alibi_batch_stride;
  args.cu_seqlens_q = params.cu_seqlens_q;
  args.cu_seqlens_k = params.cu_seqlens_k;
  args.workspace = params.workspace;
  args.workspace_bytes = clamped(params.workspace_bytes);
  args.stream = params.stream;
  if (params.pool != nullptr) {
    pool = {params.pool->parallel_for, params.pool->pool};
    args.pool = &pool;
  }
  return args;
}

}  // namespace

tilewise_status tilewise_plan_create(const tilewise_problem* problem,
                                     const tilewise_plan_options* options, tilewise_plan** plan) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return invalid_argument("plan is null");
    *plan = nullptr;
    AttentionProblem p;
    if (Status s = problem_of(problem, p); !s.ok()) return s;
    Device device;
    PlanOptions plan_options;
    if (Status s = options_of(options, device, plan_options); !s.ok()) return s;
    Result<Plan> made = make_plan(p, device, plan_options, library_registry());
    if (!made) return made.status();
    *plan = new tilewise_plan{*made};
    return {};
  });
}

void tilewise_plan_destroy(tilewise_plan* plan) { delete plan; }

tilewise_status tilewise_plan_get_info(const tilewise_plan* plan, tilewise_plan_info* info) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return invalid_argument("plan is null");
    if (Status s = check_struct_size("info", info, kFirstPlanInfoSize); !s.ok()) return s;
    tilewise_plan_info out = TILEWISE_PLAN_INFO_INIT;
    out.kernel = plan->plan.entry->name.data();  // a literal, so it ends in 0
    out.threads = plan->plan.shape.threads;
    out.num_splits = plan->plan.shape.num_splits;
    out.workspace_bytes = static_cast<uint64_t>(plan->plan.workspace_bytes);
    out.workspace_align = kWorkspaceAlign;
    write_struct(out, info);
    return {};
  });
}

tilewise_status tilewise_forward(const tilewise_plan* plan, const tilewise_forward_params* given) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return invalid_argument("plan is null");
    tilewise_forward_params params = TILEWISE_FORWARD_PARAMS_INIT;
    if (Status s = read_struct("params", given, kFirstForwardSize, params); !s.ok()) return s;
    ThreadPool pool;
    return run_forward(plan->plan, common_args_of<ForwardArgs>(params, pool));
  });
}

tilewise_status tilewise_backward(const tilewise_plan* plan,
                                  const tilewise_backward_params* given) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return invalid_argument("plan is null");
    tilewise_backward_params params = TILEWISE_BACKWARD_PARAMS_INIT;
    if (Status s = read_struct("params", given, kFirstBackwardSize, params); !s.ok()) return s;
    ThreadPool pool;
    auto args = common_args_of<BackwardArgs>(params, pool);
    args.do_ = params.do_;
    args.dq = params.dq;
    args.dk = params.dk;
    args.dv = params.dv;
    return run_backward(plan->plan, args);
  });
}
