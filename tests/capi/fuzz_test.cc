// Random descriptors (B125): whatever the fields hold, a call ends in a status, inputs are only
// read and outputs only written when the status is ok. Inputs lie in read-only pages between pages
// that may not be touched, outputs likewise in writable ones.
//
// TILEWISE_FUZZ_CASES scales the number (2,000 there are a million here); TILEWISE_FUZZ_SEED
// repeats a run.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "tests/capi/call.h"

namespace tilewise::test {
namespace {

constexpr size_t kPage = 4096, kRoom = 2 * kPage;

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

// kRoom bytes between two pages that may not be touched.
class GuardedRoom {
 public:
  GuardedRoom() {
    base_ = static_cast<std::byte*>(
        mmap(nullptr, kRoom + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    protect(PROT_READ | PROT_WRITE);
  }
  ~GuardedRoom() { munmap(base_, kRoom + 2 * kPage); }
  void protect(int protection) { mprotect(data(), kRoom, protection); }
  std::byte* data() const { return base_ + kPage; }
  // The last `bytes` of it.
  std::byte* end_minus(uint64_t bytes) const { return data() + kRoom - bytes; }

 private:
  std::byte* base_;
};

// Every field of the problem as (offset, size).
constexpr int32_t tilewise_problem::*kInts[] = {&tilewise_problem::direction,
                                                &tilewise_problem::dtype,
                                                &tilewise_problem::causal,
                                                &tilewise_problem::window_left,
                                                &tilewise_problem::window_right,
                                                &tilewise_problem::align,
                                                &tilewise_problem::has_softmax_scale,
                                                &tilewise_problem::alibi,
                                                &tilewise_problem::deterministic,
                                                &tilewise_problem::varlen};
constexpr int64_t tilewise_problem::*kLongs[] = {
    &tilewise_problem::batch,        &tilewise_problem::seqlen_q,     &tilewise_problem::seqlen_k,
    &tilewise_problem::num_heads,    &tilewise_problem::num_heads_kv, &tilewise_problem::head_dim,
    &tilewise_problem::head_dim_v,   &tilewise_problem::total_q,      &tilewise_problem::total_k,
    &tilewise_problem::max_seqlen_q, &tilewise_problem::max_seqlen_k};
constexpr tilewise_strides tilewise_problem::*kStrides[] = {
    &tilewise_problem::q,   &tilewise_problem::k,  &tilewise_problem::v,  &tilewise_problem::o,
    &tilewise_problem::do_, &tilewise_problem::dq, &tilewise_problem::dk, &tilewise_problem::dv};

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed) : random_(seed) {
    std::memset(inputs_.data(), 0x3c, kRoom);
    inputs_.protect(PROT_READ);
    for (GuardedRoom& room : outputs_) std::memset(room.data(), 0xA5, kRoom);
  }

  void once() {
    tilewise_problem p = one_in(8) ? noise() : nearly_right();
    tilewise_plan_options options = TILEWISE_PLAN_OPTIONS_INIT;
    options.threads = 1;
    if (one_in(50)) options.threads = static_cast<int32_t>(value());
    if (one_in(50)) options.device_kind = static_cast<int32_t>(value());
    if (one_in(50)) options.reserved = static_cast<int32_t>(value());
    if (one_in(20)) options.kernel = "cpu.reference";
    tilewise_plan* plan = nullptr;
    const tilewise_status status = tilewise_plan_create(&p, &options, &plan);
    check(status);
    ASSERT_EQ(plan != nullptr, status == TILEWISE_OK);
    if (plan == nullptr) return;
    ++plans;
    tilewise_plan_info info = TILEWISE_PLAN_INFO_INIT;
    ASSERT_EQ(tilewise_plan_get_info(plan, &info), TILEWISE_OK);
    run(plan, p, info.workspace_bytes);
    tilewise_plan_destroy(plan);
  }

  int64_t plans = 0, runs = 0;

 private:
  bool one_in(unsigned n) { return random_() % n == 0; }
  int64_t value() {
    static constexpr int64_t kValues[] = {
        0,         1,         2,         3,         4,         5,         7,
        8,         12,        16,        32,        -1,        -2,        33,
        64,        100,       1000,      65535,     1 << 20,   INT32_MAX, INT32_MIN,
        1LL << 31, 1LL << 32, 1LL << 40, 1LL << 61, INT64_MAX, INT64_MIN};
    return one_in(16) ? static_cast<int64_t>(random_()) : kValues[random_() % std::size(kValues)];
  }
  int64_t small(int64_t most) { return static_cast<int64_t>(random_() % (most + 1)); }

  tilewise_problem noise() {
    tilewise_problem p;
    uint64_t words[(sizeof p + 7) / 8];
    for (uint64_t& word : words) word = random_();
    std::memcpy(&p, words, sizeof p);
    if (!one_in(4)) p.struct_size = sizeof p;
    return p;
  }

  tilewise_problem nearly_right() {
    tilewise_problem p = TILEWISE_PROBLEM_INIT;
    p.direction = one_in(2);
    p.dtype = static_cast<int32_t>(small(3));
    p.batch = small(3);
    p.num_heads_kv = 1 + small(1);
    p.num_heads = p.num_heads_kv * (1 + small(1));
    p.head_dim = 1 + small(8);
    p.head_dim_v = 1 + small(8);
    p.causal = one_in(3);
    p.alibi = one_in(4);
    p.varlen = one_in(3);
    int64_t* sizes[] = {&p.seqlen_q, &p.seqlen_k};
    if (p.varlen) {
      p.total_q = p.max_seqlen_q = p.batch > 0 ? small(6) : 0;
      p.total_k = p.max_seqlen_k = p.batch > 0 ? small(6) : 0;
    } else {
      for (int64_t* size : sizes) *size = small(5);
    }
    for (uint64_t edits = random_() % 4; edits > 0; --edits) {
      switch (random_() % 4) {
        case 0:
          p.*kInts[random_() % std::size(kInts)] = static_cast<int32_t>(value());
          break;
        case 1:
          p.*kLongs[random_() % std::size(kLongs)] = value();
          break;
        case 2:
          (one_in(2) ? p.softmax_scale : p.softcap) = static_cast<float>(value());
          break;
        default:
          p.*kStrides[random_() % std::size(kStrides)] = {value(), value(), value(),
                                                          one_in(4) ? value() : 1};
      }
    }
    return p;
  }

  void check(tilewise_status status) {
    ASSERT_GE(status, TILEWISE_OK);
    ASSERT_LT(status, TILEWISE_INTERNAL_ERROR) << tilewise_last_error();
    ASSERT_NE(status, TILEWISE_OUT_OF_MEMORY);
    if (status != TILEWISE_OK) {
      ASSERT_STRNE(tilewise_last_error(), "");
    }
  }

  // Bytes that a tensor spans, or more than there is room for.
  static uint64_t span(const tilewise_problem& p, const tilewise_strides& given, int64_t seqlen,
                       int64_t total, int64_t heads, int64_t dim) {
    const int64_t element = p.dtype == TILEWISE_FP64 ? 8 : p.dtype == TILEWISE_FP32 ? 4 : 2;
    const __int128 batch = p.varlen ? 1 : p.batch, rows = p.varlen ? total : seqlen;
    if (batch == 0 || rows == 0) return 0;
    __int128 elements = batch * rows * heads * dim;
    if (given.dim == 1) {
      elements = (batch - 1) * given.batch + (rows - 1) * given.seqlen +
                 static_cast<__int128>(heads - 1) * given.head + dim;
    }
    return elements * element > static_cast<__int128>(kRoom)
               ? kRoom + 1
               : static_cast<uint64_t>(elements * element);
  }

  // A pointer for that many bytes: mostly right, sometimes null or odd.
  void* place(const GuardedRoom& room, uint64_t bytes, bool& fits) {
    if (one_in(40)) return nullptr;
    if (bytes > kRoom) {
      fits = false;
      return room.data();
    }
    if (one_in(40) && bytes < kRoom) return room.end_minus(bytes + 1);
    return one_in(2) ? room.end_minus(bytes) : room.data();
  }

  void run(const tilewise_plan* plan, const tilewise_problem& p, uint64_t workspace_bytes);

  std::mt19937_64 random_;
  GuardedRoom inputs_;
  GuardedRoom outputs_[5];
  std::vector<std::byte> workspace_;
};

void Fuzzer::run(const tilewise_plan* plan, const tilewise_problem& p, uint64_t workspace_bytes) {
  const __int128 lengths = p.varlen ? static_cast<__int128>(p.total_q) * p.total_k
                                    : static_cast<__int128>(p.batch) * p.seqlen_q * p.seqlen_k;
  if (workspace_bytes > (1 << 22) || (p.varlen && p.batch > 100)) return;
  if (lengths * p.num_heads * (p.head_dim + p.head_dim_v) > 1000000) return;  // broadcast inputs
  bool fits = true;
  const auto q_like = [&](const tilewise_strides& s, int64_t dim) {
    return span(p, s, p.seqlen_q, p.total_q, p.num_heads, dim);
  };
  const auto k_like = [&](const tilewise_strides& s, int64_t dim) {
    return span(p, s, p.seqlen_k, p.total_k, p.num_heads_kv, dim);
  };
  const auto in = [&](uint64_t bytes) { return place(inputs_, bytes, fits); };
  const auto out = [&](int i, uint64_t bytes) { return place(outputs_[i], bytes, fits); };
  const __int128 rows =
      static_cast<__int128>(p.varlen ? p.total_q : p.batch * p.seqlen_q) * p.num_heads;
  const uint64_t lse_bytes =
      rows * 4 > static_cast<__int128>(kRoom) ? kRoom + 1 : static_cast<uint64_t>(rows * 4);

  std::vector<int32_t> cu_q(p.varlen ? p.batch + 1 : 1), cu_k(cu_q.size());
  for (size_t i = 1; i < cu_q.size(); ++i) {
    cu_q[i] = one_in(30) ? static_cast<int32_t>(value()) : static_cast<int32_t>(p.total_q);
    cu_k[i] = one_in(30) ? static_cast<int32_t>(value()) : static_cast<int32_t>(p.total_k);
  }
  workspace_.resize(workspace_bytes + 64);
  auto* workspace =
      reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace_.data()) + 63) / 64 * 64);

  tilewise_forward_params f = TILEWISE_FORWARD_PARAMS_INIT;
  tilewise_backward_params b = TILEWISE_BACKWARD_PARAMS_INIT;
  const auto fill = [&](auto& params) {
    params.q = in(q_like(p.q, p.head_dim));
    params.k = in(k_like(p.k, p.head_dim));
    params.v = in(k_like(p.v, p.head_dim_v));
    if (p.alibi)
      params.alibi_slopes = static_cast<const float*>(in(
          4 * p.num_heads > int64_t{kRoom} ? kRoom + 1 : 4 * static_cast<uint64_t>(p.num_heads)));
    if (p.varlen) {
      params.cu_seqlens_q = cu_q.data();
      params.cu_seqlens_k = cu_k.data();
    }
    params.workspace = one_in(50) ? nullptr : workspace;
    params.workspace_bytes = workspace_bytes - (workspace_bytes > 0 && one_in(50));
  };
  fill(f);
  fill(b);
  f.o = out(0, q_like(p.o, p.head_dim_v));
  f.lse = static_cast<float*>(out(1, lse_bytes));
  b.o = in(q_like(p.o, p.head_dim_v));
  b.do_ = in(q_like(p.do_, p.head_dim_v));
  b.lse = static_cast<const float*>(in(lse_bytes));
  b.dq = out(2, q_like(p.dq, p.head_dim));
  b.dk = out(3, k_like(p.dk, p.head_dim));
  b.dv = out(4, k_like(p.dv, p.head_dim_v));
  if (!fits) {  // memory of that size is not there: only a call that is refused before it is
                // touched
    f.q = f.k = f.v = b.q = b.k = b.v = nullptr;
    f.o = b.dq = b.dk = b.dv = nullptr;
  }
  const tilewise_status status =
      p.direction == TILEWISE_FORWARD ? tilewise_forward(plan, &f) : tilewise_backward(plan, &b);
  check(status);
  runs += status == TILEWISE_OK;
  for (GuardedRoom& room : outputs_) {
    if (status == TILEWISE_OK) {
      std::memset(room.data(), 0xA5, kRoom);
    } else {
      static const std::vector<std::byte> kPoison(kRoom, std::byte{0xA5});
      ASSERT_EQ(std::memcmp(room.data(), kPoison.data(), kRoom), 0) << tilewise_last_error();
    }
  }
}

TEST(Fuzz, RandomDescriptors_B125) {
  const int64_t cases = 500 * from_environment("TILEWISE_FUZZ_CASES", 2000);
  const int64_t seed = from_environment("TILEWISE_FUZZ_SEED", std::random_device{}());
  SCOPED_TRACE("TILEWISE_FUZZ_SEED=" + std::to_string(seed));
  Fuzzer fuzzer(static_cast<uint64_t>(seed));
  for (int64_t i = 0; i < cases && !testing::Test::HasFatalFailure(); ++i) fuzzer.once();
  EXPECT_GT(fuzzer.plans, cases / 50);
  EXPECT_GT(fuzzer.runs, cases / 100);
  RecordProperty("descriptors", std::to_string(cases));
  RecordProperty("plans", std::to_string(fuzzer.plans));
  RecordProperty("runs", std::to_string(fuzzer.runs));
}

}  // namespace
}  // namespace tilewise::test
