// A problem of the ablation, its tensors, and its variants.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "bench/ablation/device.h"
#include "bench/ablation/launch.h"
#include "bench/ablation/reference.h"

namespace tilewise::ablation {

struct Variant {
  const char* name;
  Changes changes;
};
// "+n": with change n of 1 fewer operations that are no products, 2 parallel over the sequence,
// 3 warps split the queries. In the order of docs/kernels/flash_attention_2.md.
inline constexpr std::array<Variant, 8> kVariants = {{{"fa1", {false, false, false}},
                                                      {"fa1+1", {true, false, false}},
                                                      {"fa1+2", {false, true, false}},
                                                      {"fa1+3", {false, false, true}},
                                                      {"fa1+12", {true, true, false}},
                                                      {"fa1+13", {true, false, true}},
                                                      {"fa1+23", {false, true, true}},
                                                      {"fa1+123", {true, true, true}}}};

struct Problem {
  DType dtype = DType::kBf16;
  int batch = 1, seqlen = 0, heads = 1, head_dim = 64;
  bool causal = false;

  int64_t elements() const { return int64_t{batch} * seqlen * heads * head_dim; }
  int64_t rows() const { return int64_t{batch} * seqlen * heads; }
  // As the FlashAttention papers count: two products, half of them under a causal mask.
  double flops() const {
    return 4.0 * seqlen * seqlen * head_dim * heads * batch / (causal ? 2 : 1);
  }
};

// Contiguous (batch, seqlen, head, dim) tensors of a problem, inputs filled from the seed.
class Tensors {
 public:
  Tensors(const Problem& problem, uint64_t seed)
      : q(problem.elements()),
        k(problem.elements()),
        v(problem.elements()),
        o(problem.elements()),
        lse(problem.rows()),
        row_max(problem.rows()) {
    must(fill(q.data(), q.size(), problem.dtype, 3 * seed), "fill");
    must(fill(k.data(), k.size(), problem.dtype, 3 * seed + 1), "fill");
    must(fill(v.data(), v.size(), problem.dtype, 3 * seed + 2), "fill");
  }

  AblationParams params(const Problem& problem) const {
    AblationParams ablation;
    cuda::ForwardParams& p = ablation.forward;
    const auto tensor = [&](const DeviceArray<uint16_t>& x) {
      const int64_t row = int64_t{problem.heads} * problem.head_dim;
      return cuda::TensorRef{x.data(),         problem.seqlen * row, row,
                             problem.head_dim, problem.head_dim,     true};
    };
    p.q = tensor(q);
    p.k = tensor(k);
    p.v = tensor(v);
    p.o = tensor(o);
    p.lse = lse.data();
    p.lse_batch = int64_t{problem.heads} * problem.seqlen;
    p.lse_head = problem.seqlen;
    p.seqlen_q = p.seqlen_k = problem.seqlen;
    if (problem.causal) p.mask.window_right = 0;
    p.scale = 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
    p.plain = true;
    p.batch = problem.batch;
    p.num_heads = problem.heads;
    ablation.row_max = row_max.data();
    return ablation;
  }

  DeviceArray<uint16_t> q, k, v, o;
  DeviceArray<float> lse, row_max;
};

// Runs every variant on small problems, lengths that fill no block among them, against the
// reference. Prints each failure; returns how many there were.
int check_variants();

}  // namespace tilewise::ablation
