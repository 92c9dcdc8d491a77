// The layout of release 0.1, which later ones may only add to. A failure here is an ABI break.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>

#include "tests/capi/call.h"
#include "tilewise/tilewise.h"

namespace {

#define AT(type, field, offset) static_assert(offsetof(type, field) == (offset))

static_assert(sizeof(tilewise_strides) == 32);

AT(tilewise_problem, struct_size, 0);
AT(tilewise_problem, direction, 8);
AT(tilewise_problem, dtype, 12);
AT(tilewise_problem, batch, 16);
AT(tilewise_problem, seqlen_q, 24);
AT(tilewise_problem, seqlen_k, 32);
AT(tilewise_problem, num_heads, 40);
AT(tilewise_problem, num_heads_kv, 48);
AT(tilewise_problem, head_dim, 56);
AT(tilewise_problem, head_dim_v, 64);
AT(tilewise_problem, causal, 72);
AT(tilewise_problem, window_left, 76);
AT(tilewise_problem, window_right, 80);
AT(tilewise_problem, align, 84);
AT(tilewise_problem, has_softmax_scale, 88);
AT(tilewise_problem, softmax_scale, 92);
AT(tilewise_problem, softcap, 96);
AT(tilewise_problem, alibi, 100);
AT(tilewise_problem, deterministic, 104);
AT(tilewise_problem, varlen, 108);
AT(tilewise_problem, total_q, 112);
AT(tilewise_problem, total_k, 120);
AT(tilewise_problem, max_seqlen_q, 128);
AT(tilewise_problem, max_seqlen_k, 136);
AT(tilewise_problem, q, 144);
AT(tilewise_problem, dv, 144 + 7 * 32);
static_assert(sizeof(tilewise_problem) == 400);

AT(tilewise_plan_options, device_kind, 8);
AT(tilewise_plan_options, device_index, 12);
AT(tilewise_plan_options, threads, 16);
AT(tilewise_plan_options, reserved, 20);
AT(tilewise_plan_options, kernel, 24);
static_assert(sizeof(tilewise_plan_options) == 32);

AT(tilewise_plan_info, kernel, 8);
AT(tilewise_plan_info, threads, 16);
AT(tilewise_plan_info, num_splits, 20);
AT(tilewise_plan_info, workspace_bytes, 24);
AT(tilewise_plan_info, workspace_align, 32);
static_assert(sizeof(tilewise_plan_info) == 40);

AT(tilewise_forward_params, q, 8);
AT(tilewise_forward_params, o, 32);
AT(tilewise_forward_params, lse, 40);
AT(tilewise_forward_params, alibi_slopes, 48);
AT(tilewise_forward_params, alibi_batch_stride, 56);
AT(tilewise_forward_params, cu_seqlens_q, 64);
AT(tilewise_forward_params, cu_seqlens_k, 72);
AT(tilewise_forward_params, workspace, 80);
AT(tilewise_forward_params, workspace_bytes, 88);
AT(tilewise_forward_params, stream, 96);
AT(tilewise_forward_params, pool, 104);
static_assert(sizeof(tilewise_forward_params) == 112);

AT(tilewise_backward_params, q, 8);
AT(tilewise_backward_params, o, 32);
AT(tilewise_backward_params, do_, 40);
AT(tilewise_backward_params, lse, 48);
AT(tilewise_backward_params, dq, 56);
AT(tilewise_backward_params, dk, 64);
AT(tilewise_backward_params, dv, 72);
AT(tilewise_backward_params, alibi_slopes, 80);
AT(tilewise_backward_params, alibi_batch_stride, 88);
AT(tilewise_backward_params, cu_seqlens_q, 96);
AT(tilewise_backward_params, cu_seqlens_k, 104);
AT(tilewise_backward_params, workspace, 112);
AT(tilewise_backward_params, workspace_bytes, 120);
AT(tilewise_backward_params, stream, 128);
AT(tilewise_backward_params, pool, 136);
static_assert(sizeof(tilewise_backward_params) == 144);

AT(tilewise_merge_params, num_parts, 8);
AT(tilewise_merge_params, o_parts, 16);
AT(tilewise_merge_params, lse_parts, 24);
AT(tilewise_merge_params, o, 32);
AT(tilewise_merge_params, lse, 40);
AT(tilewise_merge_params, part_dtype, 48);
AT(tilewise_merge_params, dtype, 52);
AT(tilewise_merge_params, batch, 56);
AT(tilewise_merge_params, head_dim, 80);
AT(tilewise_merge_params, part_strides, 88);
AT(tilewise_merge_params, o_strides, 120);
static_assert(sizeof(tilewise_merge_params) == 152);

AT(tilewise_device_info, device_kind, 8);
AT(tilewise_device_info, device_index, 12);
AT(tilewise_device_info, num_cores, 16);
AT(tilewise_device_info, reserved, 20);
AT(tilewise_device_info, name, 24);
AT(tilewise_device_info, isa, 152);
AT(tilewise_device_info, note, 184);
static_assert(sizeof(tilewise_device_info) == 440);

static_assert(TILEWISE_INVALID_ARGUMENT == 1 && TILEWISE_UNSUPPORTED == 2 &&
              TILEWISE_OVERFLOW == 3 && TILEWISE_WORKSPACE == 4 && TILEWISE_OUT_OF_MEMORY == 5 &&
              TILEWISE_DEVICE_ERROR == 6 && TILEWISE_INTERNAL_ERROR == 7);
static_assert(TILEWISE_FP16 == 0 && TILEWISE_BF16 == 1 && TILEWISE_FP32 == 2 && TILEWISE_FP64 == 3);

#undef AT

using tilewise::test::Call;
using tilewise::test::Kind;

// A newer program's struct: ours and 64 bytes more.
template <class T>
struct Newer {
  T known;
  unsigned char unknown[64] = {};
};

TEST(Layout, StructsOfNewerHeadersWithAZeroTail) {
  Call call({TILEWISE_FORWARD});
  ASSERT_EQ(call.create(), TILEWISE_OK);
  Newer<tilewise_problem> problem{call.problem};
  problem.known.struct_size = sizeof problem;
  Newer<tilewise_plan_options> options{call.options};
  options.known.struct_size = sizeof options;
  tilewise_plan* plan = nullptr;
  ASSERT_EQ(tilewise_plan_create(&problem.known, &options.known, &plan), TILEWISE_OK)
      << tilewise_last_error();
  Newer<tilewise_forward_params> params{call.forward};
  params.known.struct_size = sizeof params;
  EXPECT_EQ(tilewise_forward(plan, &params.known), TILEWISE_OK) << tilewise_last_error();

  call.snapshot();
  params.unknown[63] = 1;
  EXPECT_EQ(tilewise_forward(plan, &params.known), TILEWISE_INVALID_ARGUMENT);
  EXPECT_TRUE(call.untouched());
  EXPECT_NE(std::string(tilewise_last_error()).find("byte 175 is not 0"), std::string::npos)
      << tilewise_last_error();
  tilewise_plan_destroy(plan);
  plan = nullptr;
  for (unsigned char* byte : {&problem.unknown[0], &options.unknown[13]}) {
    *byte = 0x80;
    EXPECT_EQ(tilewise_plan_create(&problem.known, &options.known, &plan),
              TILEWISE_INVALID_ARGUMENT);
    *byte = 0;
  }
  EXPECT_EQ(plan, nullptr);
}

TEST(Layout, AnswersInStructsOfNewerHeaders) {
  Call call({TILEWISE_FORWARD});
  ASSERT_EQ(call.create(), TILEWISE_OK);
  Newer<tilewise_plan_info> info;
  std::memset(static_cast<void*>(&info), 0xEE, sizeof info);
  info.known.struct_size = sizeof info;
  ASSERT_EQ(tilewise_plan_get_info(call.plan(), &info.known), TILEWISE_OK);
  EXPECT_EQ(info.known.struct_size, sizeof info);
  EXPECT_EQ(info.known.workspace_align, 64u);
  for (const unsigned char byte : info.unknown) EXPECT_EQ(byte, 0);
  Newer<tilewise_device_info> device;
  std::memset(static_cast<void*>(&device), 0xEE, sizeof device);
  device.known.struct_size = sizeof device;
  ASSERT_EQ(tilewise_device_get_info(TILEWISE_CPU, 0, &device.known), TILEWISE_OK);
  EXPECT_GE(device.known.num_cores, 1);
  EXPECT_NE(device.known.name[0], '\0');
  for (const unsigned char byte : device.unknown) EXPECT_EQ(byte, 0);
}

// Zeroed structs, as bindings make them, with each 4 bytes before `end` set in turn (B125): never
// more than a status.
template <class T, class F>
void set_each_word(const F& call, const char* name, size_t end = sizeof(T)) {
  for (size_t offset = 0; offset + 4 <= end; offset += 4) {
    for (const uint32_t value : {1u, 2u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
      for (const bool sized : {false, true}) {
        T zeroed;
        std::memset(static_cast<void*>(&zeroed), 0, sizeof zeroed);
        if (sized) zeroed.struct_size = sizeof zeroed;
        std::memcpy(reinterpret_cast<char*>(&zeroed) + offset, &value, sizeof value);
        const tilewise_status status = call(zeroed);
        EXPECT_TRUE(status == TILEWISE_INVALID_ARGUMENT || status == TILEWISE_OVERFLOW ||
                    status == TILEWISE_WORKSPACE)
            << name << " word at " << offset << " = " << value << ": "
            << tilewise_status_string(status);
        EXPECT_STRNE(tilewise_last_error(), "");
      }
    }
  }
}

TEST(Layout, ZeroedStructsWithEachFieldSet_B125) {
  tilewise_plan* plan = nullptr;
  set_each_word<tilewise_problem>(
      [&](tilewise_problem& p) { return tilewise_plan_create(&p, nullptr, &plan); }, "problem");
  EXPECT_EQ(plan, nullptr);
  for (const Kind& kind : tilewise::test::all_kinds()) {
    SCOPED_TRACE(kind.name());
    Call call(kind);
    ASSERT_EQ(call.create(), TILEWISE_OK);
    call.snapshot();
    if (kind.direction == TILEWISE_FORWARD) {
      set_each_word<tilewise_forward_params>(
          [&](tilewise_forward_params& p) { return tilewise_forward(call.plan(), &p); }, "params",
          offsetof(tilewise_forward_params, pool));  // the pool is read, so it must be one
    } else {
      set_each_word<tilewise_backward_params>(
          [&](tilewise_backward_params& p) { return tilewise_backward(call.plan(), &p); }, "params",
          offsetof(tilewise_backward_params, pool));
    }
    EXPECT_TRUE(call.untouched());
    EXPECT_EQ(call.run(), TILEWISE_OK) << tilewise_last_error();
  }
}

}  // namespace
