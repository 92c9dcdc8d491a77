// What a call costs before any arithmetic: argument checks and dispatch, on one thread.
//
//   build/bin/tilewise_bench_call_overhead
//
// Goal: below 0.5 us with seqlen_q = seqlen_k = 0.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tilewise/tilewise.h"

namespace {

struct Shape {
  int64_t seqlen_q, seqlen_k;
  int64_t varlen_batch;  // 0: dense
};

// q, k, v and so on of a shape with one head of 64; every pointer valid, no two tensors in one
// place.
class Call {
 public:
  Call(tilewise_direction direction, const Shape& shape) : direction_(direction) {
    tilewise_problem p = TILEWISE_PROBLEM_INIT;
    p.direction = direction;
    p.num_heads = p.num_heads_kv = 1;
    p.head_dim = p.head_dim_v = 64;
    p.batch = 1;
    if (shape.varlen_batch > 0) {
      p.varlen = 1;
      p.batch = shape.varlen_batch;
    } else {
      p.seqlen_q = shape.seqlen_q;
      p.seqlen_k = shape.seqlen_k;
    }
    tilewise_plan_options options = TILEWISE_PLAN_OPTIONS_INIT;
    options.threads = 1;
    tilewise_plan_info info = TILEWISE_PLAN_INFO_INIT;
    if (tilewise_plan_create(&p, &options, &plan_) != TILEWISE_OK) return;
    if (tilewise_plan_get_info(plan_, &info) != TILEWISE_OK) return;
    workspace_.resize(info.workspace_bytes / 64 + 2);
    cu_seqlens_.assign(static_cast<size_t>(p.batch) + 1, 0);
    fill(forward_, p.varlen, info.workspace_bytes);
    fill(backward_, p.varlen, info.workspace_bytes);
    forward_.o = tensors_[3];
    backward_.o = tensors_[3];
    backward_.do_ = tensors_[4];
    backward_.dq = tensors_[5];
    backward_.dk = tensors_[6];
    backward_.dv = tensors_[7];
  }
  ~Call() { tilewise_plan_destroy(plan_); }

  tilewise_status run() {
    return direction_ == TILEWISE_FORWARD ? tilewise_forward(plan_, &forward_)
                                          : tilewise_backward(plan_, &backward_);
  }

 private:
  struct alignas(64) Line {
    char bytes[64];
  };
  template <class Params>
  void fill(Params& params, bool varlen, uint64_t workspace_bytes) {
    params.q = tensors_[0];
    params.k = tensors_[1];
    params.v = tensors_[2];
    params.lse = tensors_[8];
    params.cu_seqlens_q = params.cu_seqlens_k = varlen ? cu_seqlens_.data() : nullptr;
    params.workspace = workspace_.data();
    params.workspace_bytes = workspace_bytes;
  }

  tilewise_direction direction_;
  tilewise_plan* plan_ = nullptr;
  tilewise_forward_params forward_ = TILEWISE_FORWARD_PARAMS_INIT;
  tilewise_backward_params backward_ = TILEWISE_BACKWARD_PARAMS_INIT;
  alignas(64) float tensors_[9][256] = {};
  std::vector<Line> workspace_;
  std::vector<int32_t> cu_seqlens_;
};

void call(benchmark::State& state, tilewise_direction direction, Shape shape) {
  Call call(direction, shape);
  if (call.run() != TILEWISE_OK) {
    state.SkipWithError(tilewise_last_error());
    return;
  }
  for (auto _ : state) benchmark::DoNotOptimize(call.run());
}

}  // namespace

BENCHMARK_CAPTURE(call, forward_sq0_sk0, TILEWISE_FORWARD, Shape{0, 0, 0});
BENCHMARK_CAPTURE(call, backward_sq0_sk0, TILEWISE_BACKWARD, Shape{0, 0, 0});
BENCHMARK_CAPTURE(call, forward_sq1_sk0, TILEWISE_FORWARD, Shape{1, 0, 0});
BENCHMARK_CAPTURE(call, forward_sq1_sk1, TILEWISE_FORWARD, Shape{1, 1, 0});
BENCHMARK_CAPTURE(call, backward_sq1_sk1, TILEWISE_BACKWARD, Shape{1, 1, 0});
BENCHMARK_CAPTURE(call, forward_varlen_b1000, TILEWISE_FORWARD, Shape{0, 0, 1000});

BENCHMARK_MAIN();
