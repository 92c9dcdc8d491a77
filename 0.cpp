// Attention and its gradients in C++20: a plan for each direction, run on plain pointers.
#include <cstdio>
#include <tilewise/tilewise.hpp>
#include <vector>

int report(const char* message) {
  std::fprintf(stderr, "%s\n", message);
  return 1;
}

int main() {
  const tilewise::Problem problem{.dtype = tilewise::fp32,
                                  .batch = 2,
                                  .seqlen_q = 200,
                                  .num_heads = 8,
                                  .num_heads_kv = 2,
                                  .head_dim = 64,
                                  .mask = tilewise::causal()};
  const auto forward = tilewise::Plan::forward(problem);
  if (!forward) return report(forward.error().message.c_str());
  const auto backward = tilewise::Plan::backward(problem);
  if (!backward) return report(backward.error().message.c_str());

  std::vector<float> q(2 * 200 * 8 * 64), k(2 * 200 * 2 * 64), v(k.size());  // (b, s, h, d)
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i % 7) - 3;
  for (size_t i = 0; i < k.size(); ++i) k[i] = static_cast<float>(i % 5) - 2;
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i % 3);
  std::vector<float> o(q.size()), lse(2 * 8 * 200);  // lse (b, h, s)

  const tilewise::Buffer room(forward->workspace_bytes());
  const auto ran = forward->run(
      {.q = q.data(), .k = k.data(), .v = v.data(), .o = o.data(), .lse = lse.data()}, room);
  if (!ran) return report(ran.message());

  std::vector<float> d_o(o.size(), 1.0f), dq(q.size()), dk(k.size()), dv(v.size());
  const tilewise::Buffer more_room(backward->workspace_bytes());
  const auto went_back = backward->run({.q = q.data(),
                                        .k = k.data(),
                                        .v = v.data(),
                                        .o = o.data(),
                                        .do_ = d_o.data(),
                                        .lse = lse.data(),
                                        .dq = dq.data(),
                                        .dk = dk.data(),
                                        .dv = dv.data()},
                                       more_room);
  if (!went_back) return report(went_back.message());

  double total = 0;  // every query hands out a weight of 1: dv sums to the number of elements of do
  for (const float x : dv) total += x;
  std::printf("%s, %s: dv sums to %.1f, %zu expected\n", forward->kernel(), backward->kernel(),
              total, d_o.size());
}
