/* The header from C11, and the library from a program that knows no C++ (B122). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tilewise/tilewise.h"

static int failed = 0;

static void expect(int condition, const char* text, int line) {
  if (condition) return;
  printf("header_test.c:%d: %s; last error: %s\n", line, text, tilewise_last_error());
  failed = 1;
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)

static void run_forward(const tilewise_problem* problem) {
  tilewise_plan* plan = NULL;
  tilewise_plan_info info = TILEWISE_PLAN_INFO_INIT;
  tilewise_forward_params params = TILEWISE_FORWARD_PARAMS_INIT;
  float q[3 * 4], k[3 * 4], v[3 * 4], o[3 * 4], lse[3];
  int i;
  for (i = 0; i < 12; ++i) {
    q[i] = 0.0f; /* all scores equal: o is the mean of the visible v */
    k[i] = (float)i;
    v[i] = (float)(i / 4);
  }
  EXPECT(tilewise_plan_create(problem, NULL, &plan) == TILEWISE_OK);
  EXPECT(tilewise_plan_get_info(plan, &info) == TILEWISE_OK);
  params.q = q;
  params.k = k;
  params.v = v;
  params.o = o;
  params.lse = lse;
  params.workspace_bytes = (info.workspace_bytes + 63) / 64 * 64;
  params.workspace = params.workspace_bytes ? aligned_alloc(64, params.workspace_bytes) : NULL;
  EXPECT(tilewise_forward(plan, &params) == TILEWISE_OK);
  for (i = 0; i < 3; ++i) {
    EXPECT(fabsf(o[4 * i] - 0.5f * (float)i) < 1e-6f); /* (0 + ... + i) / (i + 1) */
    EXPECT(fabsf(lse[i] - logf((float)i + 1.0f)) < 1e-6f);
  }
  free(params.workspace);
  tilewise_plan_destroy(plan);
}

int main(void) {
  tilewise_problem problem = TILEWISE_PROBLEM_INIT;
  tilewise_plan_options options = TILEWISE_PLAN_OPTIONS_INIT;
  tilewise_backward_params backward = TILEWISE_BACKWARD_PARAMS_INIT;
  tilewise_merge_params merge = TILEWISE_MERGE_PARAMS_INIT;
  tilewise_plan* plan = NULL;
  char text[256];
  size_t needed = 0;

  EXPECT(tilewise_version() ==
         10000 * TILEWISE_VERSION_MAJOR + 100 * TILEWISE_VERSION_MINOR + TILEWISE_VERSION_PATCH);
  EXPECT(strcmp(tilewise_last_error(), "") == 0);
  EXPECT(tilewise_problem_parse("fp32 b1 sq3 h1 d4 causal", &problem) == TILEWISE_OK);
  run_forward(&problem);
  EXPECT(tilewise_problem_print(&problem, text, sizeof text, &needed) == TILEWISE_OK);
  EXPECT(strcmp(text, "fp32 b1 sq3 h1 d4 causal") == 0 && needed == strlen(text) + 1);

  EXPECT(options.struct_size == sizeof options && options.device_kind == TILEWISE_CPU);
  EXPECT(backward.struct_size == sizeof backward && backward.dv == NULL);
  EXPECT(merge.struct_size == sizeof merge && merge.dtype == TILEWISE_FP32);
  problem.batch = -1;
  EXPECT(tilewise_plan_create(&problem, &options, &plan) == TILEWISE_INVALID_ARGUMENT);
  EXPECT(strstr(tilewise_last_error(), "batch") != NULL && plan == NULL);
  return failed;
}
