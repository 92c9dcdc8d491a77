/* Causal attention in C: describe the problem, make a plan, ask for the workspace size, run. */
#include <stdio.h>
#include <stdlib.h>
#include <tilewise/tilewise.h>

int main(void) {
  tilewise_problem problem = TILEWISE_PROBLEM_INIT;
  problem.dtype = TILEWISE_FP32;
  problem.batch = 1;
  problem.seqlen_q = problem.seqlen_k = 1000;
  problem.num_heads = 8;
  problem.num_heads_kv = 2; /* four query heads share a key head */
  problem.head_dim = problem.head_dim_v = 64;
  problem.causal = 1;

  tilewise_plan* plan = NULL;
  tilewise_plan_info info = TILEWISE_PLAN_INFO_INIT;
  if (tilewise_plan_create(&problem, NULL, &plan) != TILEWISE_OK ||
      tilewise_plan_get_info(plan, &info) != TILEWISE_OK) {
    fprintf(stderr, "%s\n", tilewise_last_error());
    return 1;
  }

  const size_t q_size = 1000 * 8 * 64, kv_size = 1000 * 2 * 64; /* (seqlen, heads, head_dim) */
  float* q = malloc(q_size * sizeof *q);
  float* k = malloc(kv_size * sizeof *k);
  float* v = malloc(kv_size * sizeof *v);
  float* o = malloc(q_size * sizeof *o);
  const size_t room = ((size_t)info.workspace_bytes + 63) / 64 * 64;
  void* workspace = room > 0 ? aligned_alloc(64, room) : NULL;
  for (size_t i = 0; i < q_size; ++i) q[i] = (float)(i % 7) - 3;
  for (size_t i = 0; i < kv_size; ++i) {
    k[i] = (float)(i % 5) - 2;
    v[i] = 1; /* an average of ones: o must be 1 */
  }

  tilewise_forward_params run = TILEWISE_FORWARD_PARAMS_INIT;
  run.q = q;
  run.k = k;
  run.v = v;
  run.o = o;
  run.workspace = workspace;
  run.workspace_bytes = info.workspace_bytes;
  if (tilewise_forward(plan, &run) != TILEWISE_OK) {
    fprintf(stderr, "%s\n", tilewise_last_error());
    return 1;
  }
  printf("%s: o[0] = %.6f, o[last] = %.6f\n", info.kernel, o[0], o[q_size - 1]);

  tilewise_plan_destroy(plan);
  free(workspace);
  free(o);
  free(v);
  free(k);
  free(q);
  return 0;
}
