/* Tilewise: exact attention, forward and backward. The C ABI: the only ABI promise of the library.
 *
 * In short: describe the problem, make a plan, ask for the workspace size, run.
 *
 *     tilewise_problem problem = TILEWISE_PROBLEM_INIT;
 *     problem.dtype = TILEWISE_FP32;
 *     problem.batch = 1; problem.seqlen_q = problem.seqlen_k = 1024;
 *     problem.num_heads = problem.num_heads_kv = 8; problem.head_dim = problem.head_dim_v = 64;
 *     problem.causal = 1;
 *     tilewise_plan* plan = NULL;
 *     if (tilewise_plan_create(&problem, NULL, &plan) != TILEWISE_OK) puts(tilewise_last_error());
 *
 * Rules of every function:
 * - Structs begin with struct_size, which the _INIT macros fill together with every default. Fields
 *   are only ever appended; a longer struct from a newer header is accepted if its unknown tail is
 *   zero, a shorter one from an older header gets the defaults.
 * - Nothing is printed, no exception leaves the library, and nothing is written when the status is
 *   not TILEWISE_OK. tilewise_last_error() then says which field had which value.
 * - Run calls (tilewise_forward, tilewise_backward, tilewise_merge) do not allocate, and any number
 *   of threads may run one plan at the same time, each with its own workspace.
 * - Sizes and strides count elements, never bytes, except where the name says bytes.
 */
#ifndef TILEWISE_TILEWISE_H_
#define TILEWISE_TILEWISE_H_

#include <stddef.h>
#include <stdint.h>

#define TILEWISE_VERSION_MAJOR 0
#define TILEWISE_VERSION_MINOR 1
#define TILEWISE_VERSION_PATCH 0

#if defined(__GNUC__)
#define TILEWISE_API __attribute__((visibility("default")))
#else
#define TILEWISE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tilewise_status {
  TILEWISE_OK = 0,
  TILEWISE_INVALID_ARGUMENT = 1, /* a field or pointer is wrong */
  TILEWISE_UNSUPPORTED = 2,      /* well-formed, but no kernel of this build computes it */
  TILEWISE_OVERFLOW = 3,         /* sizes do not fit into 64 bits */
  TILEWISE_WORKSPACE = 4,        /* workspace null, too small or misaligned */
  TILEWISE_OUT_OF_MEMORY = 5,    /* host memory for a plan or a message could not be had */
  TILEWISE_DEVICE_ERROR = 6,     /* the device or its driver failed, or is not there */
  TILEWISE_INTERNAL_ERROR = 7
} tilewise_status;

typedef enum tilewise_direction { TILEWISE_FORWARD = 0, TILEWISE_BACKWARD = 1 } tilewise_direction;

typedef enum tilewise_dtype {
  TILEWISE_FP16 = 0,
  TILEWISE_BF16 = 1,
  TILEWISE_FP32 = 2,
  TILEWISE_FP64 = 3
} tilewise_dtype;

/* Where the diagonal of the seqlen_q x seqlen_k score matrix ends. */
typedef enum tilewise_corner {
  TILEWISE_BOTTOM_RIGHT = 0, /* the last query is aligned with the last key */
  TILEWISE_TOP_LEFT = 1      /* the first query is aligned with the first key */
} tilewise_corner;

typedef enum tilewise_device_kind { TILEWISE_CPU = 0, TILEWISE_CUDA = 1 } tilewise_device_kind;

/* Element strides of a (batch, seqlen, head, dim) view. All four 0: contiguous in that order. dim
 * must be 1 otherwise. Strides may be 0 on inputs (a broadcast), never on outputs. */
typedef struct tilewise_strides {
  int64_t batch;
  int64_t seqlen;
  int64_t head;
  int64_t dim;
} tilewise_strides;

/* What to compute. q (batch, seqlen_q, num_heads, head_dim), k (batch, seqlen_k, num_heads_kv,
 * head_dim), v (batch, seqlen_k, num_heads_kv, head_dim_v), o (batch, seqlen_q, num_heads,
 * head_dim_v); do has the shape of o, and dq, dk, dv those of q, k, v. Query head i reads kv head
 * i / (num_heads / num_heads_kv).
 *
 * scores = softmax_scale * q.k, then softcap, then ALiBi, then the mask, then softmax. */
typedef struct tilewise_problem {
  size_t struct_size;
  int32_t direction; /* tilewise_direction */
  int32_t dtype;     /* tilewise_dtype of q, k, v, o and the gradients */
  int64_t batch;
  int64_t seqlen_q; /* 0 when varlen */
  int64_t seqlen_k; /* 0 when varlen */
  int64_t num_heads;
  int64_t num_heads_kv; /* divides num_heads */
  int64_t head_dim;
  int64_t head_dim_v;

  /* Key j is visible to query i iff i + diag - window_left <= j <= i + diag + window_right, where
   * diag is seqlen_k - seqlen_q (bottom right) or 0 (top left). -1: unbounded on that side. causal
   * sets window_right to 0 and refuses a larger one. A query that sees no key gives o = 0 and
   * lse = -inf. */
  int32_t causal;
  int32_t window_left;
  int32_t window_right;
  int32_t align; /* tilewise_corner */

  int32_t has_softmax_scale; /* 0: 1/sqrt(head_dim) */
  float softmax_scale;       /* finite; zero and negative are legal */
  float softcap;             /* > 0: scores become softcap * tanh(score / softcap); 0: off */
  int32_t alibi;             /* bias -slope * |i + diag - j|, slopes given with the call */
  int32_t deterministic;     /* backward: dq is bit-equal on reruns (always so on the CPU) */

  /* Sequences of their own lengths, packed: tensors are (total, head, dim), lse is
   * (head, total_q), and cu_seqlens with batch + 1 entries come with the call. */
  int32_t varlen;
  int64_t total_q;
  int64_t total_k;
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;

  tilewise_strides q;
  tilewise_strides k;
  tilewise_strides v;
  tilewise_strides o;
  tilewise_strides do_;
  tilewise_strides dq;
  tilewise_strides dk;
  tilewise_strides dv;
} tilewise_problem;

/* clang-format off */
#define TILEWISE_PROBLEM_INIT                                                                  \
  {sizeof(tilewise_problem), TILEWISE_FORWARD, TILEWISE_FP32, 0, 0, 0, 0, 0, 0, 0, 0, -1, -1,  \
   TILEWISE_BOTTOM_RIGHT, 0, 0.0f, 0.0f, 0, 0, 0, 0, 0, 0, 0, {0, 0, 0, 0}, {0, 0, 0, 0},      \
   {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}
/* clang-format on */

typedef struct tilewise_plan_options {
  size_t struct_size;
  int32_t device_kind;  /* tilewise_device_kind */
  int32_t device_index; /* CUDA device; 0 for the CPU */
  int32_t threads;      /* CPU: most threads a run may use, up to 65536; 0: every core */
  int32_t reserved;     /* 0 */
  const char* kernel;   /* forces one by name; NULL: TILEWISE_KERNEL, else the first that can */
} tilewise_plan_options;

/* clang-format off */
#define TILEWISE_PLAN_OPTIONS_INIT {sizeof(tilewise_plan_options), TILEWISE_CPU, 0, 0, 0, NULL}
/* clang-format on */

/* The kernel chosen for a problem on a device. Immutable; owns no memory of the run. */
typedef struct tilewise_plan tilewise_plan;

/* options may be NULL (the CPU, all cores). *plan is NULL unless the status is TILEWISE_OK; when no
 * kernel can compute the problem the error lists every candidate with its reason. */
TILEWISE_API tilewise_status tilewise_plan_create(const tilewise_problem* problem,
                                                  const tilewise_plan_options* options,
                                                  tilewise_plan** plan);
TILEWISE_API void tilewise_plan_destroy(tilewise_plan* plan); /* NULL is fine */

typedef struct tilewise_plan_info {
  size_t struct_size;
  const char* kernel; /* lives as long as the library */
  int32_t threads;
  int32_t num_splits;       /* pieces of the key sequence */
  uint64_t workspace_bytes; /* what run calls need; 0: workspace may be NULL */
  uint64_t workspace_align; /* bytes */
} tilewise_plan_info;

/* clang-format off */
#define TILEWISE_PLAN_INFO_INIT {sizeof(tilewise_plan_info), NULL, 0, 0, 0, 0}
/* clang-format on */

TILEWISE_API tilewise_status tilewise_plan_get_info(const tilewise_plan* plan,
                                                    tilewise_plan_info* info);

/* A thread pool of the caller: parallel_for must call task(context, i) once for every i in
 * [0, count), on any threads, and return when all calls have returned. */
typedef struct tilewise_thread_pool {
  void (*parallel_for)(void* pool, int64_t count, void (*task)(void* context, int64_t i),
                       void* context);
  void* pool;
} tilewise_thread_pool;

typedef struct tilewise_forward_params {
  size_t struct_size;
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;                  /* optional: natural log of the sum of exp(score), (batch, head,
                                  seqlen_q) or (head, total_q); -inf for a row without keys */
  const float* alibi_slopes;   /* (head) or (batch, head); iff problem.alibi */
  int64_t alibi_batch_stride;  /* 0: one set of slopes for all batches */
  const int32_t* cu_seqlens_q; /* batch + 1 entries, from 0 to total_q; iff problem.varlen */
  const int32_t* cu_seqlens_k;
  void* workspace;
  uint64_t workspace_bytes;
  void* stream;                     /* cudaStream_t; NULL on the CPU */
  const tilewise_thread_pool* pool; /* CPU: NULL for the library's own threads */
} tilewise_forward_params;

/* clang-format off */
#define TILEWISE_FORWARD_PARAMS_INIT                                                          \
  {sizeof(tilewise_forward_params), NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, 0, \
   NULL, NULL}
/* clang-format on */

typedef struct tilewise_backward_params {
  size_t struct_size;
  const void* q;
  const void* k;
  const void* v;
  const void* o;    /* output of the forward call */
  const void* do_;  /* gradient with respect to o */
  const float* lse; /* of the forward call, required */
  void* dq;
  void* dk;
  void* dv;
  const float* alibi_slopes;
  int64_t alibi_batch_stride;
  const int32_t* cu_seqlens_q;
  const int32_t* cu_seqlens_k;
  void* workspace;
  uint64_t workspace_bytes;
  void* stream;
  const tilewise_thread_pool* pool;
} tilewise_backward_params;

/* clang-format off */
#define TILEWISE_BACKWARD_PARAMS_INIT                                                            \
  {sizeof(tilewise_backward_params), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
   0, NULL, NULL, NULL, 0, NULL, NULL}
/* clang-format on */

/* Runs a plan of that direction. Outputs may not overlap an input or each other. */
TILEWISE_API tilewise_status tilewise_forward(const tilewise_plan* plan,
                                              const tilewise_forward_params* params);
TILEWISE_API tilewise_status tilewise_backward(const tilewise_plan* plan,
                                               const tilewise_backward_params* params);

/* Joins attention over disjoint sets of keys: o = sum_i exp(lse_i - lse) o_i. (0, -inf) is the
 * identity, bit for bit. Runs on the CPU on the calling thread. */
typedef struct tilewise_merge_params {
  size_t struct_size;
  int64_t num_parts;
  const void* const* o_parts;    /* num_parts pointers to (batch, seqlen, num_heads, head_dim) */
  const float* const* lse_parts; /* num_parts pointers to (batch, num_heads, seqlen) */
  void* o;
  float* lse;         /* optional */
  int32_t part_dtype; /* tilewise_dtype of the parts */
  int32_t dtype;      /* tilewise_dtype of o */
  int64_t batch;
  int64_t seqlen;
  int64_t num_heads;
  int64_t head_dim;
  tilewise_strides part_strides; /* of every part */
  tilewise_strides o_strides;
} tilewise_merge_params;

/* clang-format off */
#define TILEWISE_MERGE_PARAMS_INIT                                                             \
  {sizeof(tilewise_merge_params), 0, NULL, NULL, NULL, NULL, TILEWISE_FP32, TILEWISE_FP32, 0, 0, \
   0, 0, {0, 0, 0, 0}, {0, 0, 0, 0}}
/* clang-format on */

TILEWISE_API tilewise_status tilewise_merge(const tilewise_merge_params* params);

/* The one-line text form of a problem, e.g. "bf16 b2 sq4096 sk4096 h32 hk8 d128 causal". */
TILEWISE_API tilewise_status tilewise_problem_parse(const char* text, tilewise_problem* problem);

/* Functions that return text copy at most capacity bytes with the final 0 into buffer (NULL when
 * capacity is 0) and set *needed (may be NULL) to the size of the whole text with its final 0. */
TILEWISE_API tilewise_status tilewise_problem_print(const tilewise_problem* problem, char* buffer,
                                                    size_t capacity, size_t* needed);
/* One line for each kernel of the library, in order of preference:
 * "<name>\tchosen|would run|no\t<reason>\n". Fine for problems that no kernel computes. */
TILEWISE_API tilewise_status tilewise_explain(const tilewise_problem* problem,
                                              const tilewise_plan_options* options, char* buffer,
                                              size_t capacity, size_t* needed);

/* Kernels of this build, in order of preference; index in [0, tilewise_kernel_count()). The strings
 * live as long as the library; NULL for an index out of range. */
TILEWISE_API int32_t tilewise_kernel_count(void);
TILEWISE_API const char* tilewise_kernel_name(int32_t index);
TILEWISE_API const char* tilewise_kernel_summary(int32_t index);

typedef struct tilewise_device_info {
  size_t struct_size;
  int32_t device_kind;
  int32_t device_index;
  int32_t num_cores; /* logical processors this process may use */
  int32_t reserved;
  char name[128]; /* processor or GPU */
  char isa[32];   /* level in use: scalar, avx2, avx512, avx512bf16 */
  char note[256]; /* why no better level is in use; may be empty */
} tilewise_device_info;

/* Devices that can be used here; 0 with TILEWISE_OK when the backend is off, and
 * tilewise_backend_note() says why. */
TILEWISE_API tilewise_status tilewise_device_count(int32_t device_kind, int32_t* count);
/* info->struct_size must be set; the rest is filled. */
TILEWISE_API tilewise_status tilewise_device_get_info(int32_t device_kind, int32_t device_index,
                                                      tilewise_device_info* info);
/* One sentence on a backend, e.g. its thread runtime or why it is off. Static storage. */
TILEWISE_API const char* tilewise_backend_note(int32_t device_kind);

/* Of the last call on this thread that did not return TILEWISE_OK: one sentence with the offending
 * field and value. Valid until the next call on this thread; "" before any failure. */
TILEWISE_API const char* tilewise_last_error(void);
TILEWISE_API const char* tilewise_status_string(tilewise_status status);
TILEWISE_API int32_t tilewise_version(void); /* 10000 * major + 100 * minor + patch */

#ifdef __cplusplus
}
#endif

#endif /* TILEWISE_TILEWISE_H_ */
