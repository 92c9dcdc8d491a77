// The decode kernels, each instruction set this machine has, against cpu.reference.
#include "cpu/decode.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/numeric.h"
#include "core/plan.h"
#include "core/registry.h"
#include "cpu/cpu_device.h"
#include "cpu/entries.h"
#include "tests/thinned.h"

namespace tilewise {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const Registry& registry() {
  static const Registry all(cpu::entries());
  return all;
}

std::vector<std::string> decode_kernels(const AttentionProblem& p) {
  std::vector<std::string> names;
  for (const KernelEntry* e : cpu::decode_entries()) {
    if (e->supports(p, *cpu::cpu_device()).yes) names.emplace_back(e->name);
  }
  return names;
}

// Memory whose last byte is the last one before a page that may not be touched.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t bytes) : bytes_(bytes), length_((bytes / 4096 + 2) * 4096) {
    map_ = static_cast<char*>(
        mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(map_ + length_ - 4096, 4096, PROT_NONE);
    std::memset(map_, 0xff, length_ - 4096);  // NaN of every type
  }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  ~GuardedBytes() { munmap(map_, length_); }
  char* data() const { return map_ + length_ - 4096 - bytes_; }
  size_t size() const { return bytes_; }

 private:
  size_t bytes_, length_;
  char* map_;
};

void put(char* base, int64_t i, DType type, float x) {
  if (type == DType::kFp32) reinterpret_cast<float*>(base)[i] = x;
  if (type == DType::kFp16) reinterpret_cast<uint16_t*>(base)[i] = fp16_of_float(x);
  if (type == DType::kBf16) reinterpret_cast<uint16_t*>(base)[i] = bf16_of_float(x);
}
double get(const char* base, int64_t i, DType type) {
  if (type == DType::kFp32) return reinterpret_cast<const float*>(base)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(base)[i];
  return type == DType::kFp16 ? float_of_fp16(bits) : float_of_bf16(bits);
}

int64_t span_of(const AttentionProblem& p, TensorId t) {
  const Extents e = p.extents(t);
  if (e.batch == 0 || e.seqlen == 0) return 0;
  const Strides& s = p.stride(t);
  return (e.batch - 1) * s.batch + (e.seqlen - 1) * s.seqlen + (e.heads - 1) * s.head + e.dim;
}

// A case with its tensors. Fill once, run with as many kernels as wanted.
struct Case {
  ProblemCase text;
  AttentionProblem p;
  std::vector<int32_t> cu_q{0}, cu_k{0};
  std::vector<float> slopes;
  GuardedBytes q, k, v;

  explicit Case(const std::string& line, uint64_t seed = 1)
      : text(*parse_case(line)),
        p(text.problem),
        q(bytes(TensorId::kQ)),
        k(bytes(TensorId::kK)),
        v(bytes(TensorId::kV)) {
    for (size_t i = 0; i < text.lengths_q.size(); ++i) {
      cu_q.push_back(cu_q.back() + text.lengths_q[i]);
      cu_k.push_back(cu_k.back() + text.lengths_k[i]);
    }
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t h = 0; h < p.num_heads; ++h) slopes.push_back(std::exp2(-0.5f * float(h + 1)));
    fill(TensorId::kQ, q, [&] { return normal(random); });
    fill(TensorId::kK, k, [&] { return normal(random); });
    fill(TensorId::kV, v, [&] { return normal(random); });
  }
  size_t bytes(TensorId t) const { return size_t(span_of(p, t) * size_of(p.dtype)); }

  template <class F>
  void fill(TensorId t, const GuardedBytes& data, F f) const {
    each(t, [&](int64_t i) { put(data.data(), i, p.dtype, f()); });
  }
  template <class F>
  void each(TensorId t, F f) const {
    const Extents e = p.extents(t);
    for (int64_t b = 0; b < e.batch; ++b) {
      for (int64_t s = 0; s < e.seqlen; ++s) {
        for (int64_t h = 0; h < e.heads; ++h) {
          for (int64_t x = 0; x < e.dim; ++x) f(at(t, b, s, h, x));
        }
      }
    }
  }
  int64_t at(TensorId t, int64_t b, int64_t s, int64_t h, int64_t x) const {
    const Strides& st = p.stride(t);
    return b * st.batch + s * st.seqlen + h * st.head + x;
  }
};

struct Outcome {
  std::string o;  // every byte of the buffer, gaps included
  std::vector<float> lse;

  double value(const AttentionProblem& p, int64_t i) const { return get(o.data(), i, p.dtype); }
  bool operator==(const Outcome& other) const {
    return o == other.o && lse.size() == other.lse.size() &&
           std::memcmp(lse.data(), other.lse.data(), 4 * lse.size()) == 0;
  }
};

Outcome run(const Case& c, const std::string& kernel, int threads = 1,
            const int32_t* cu_q = nullptr, const int32_t* cu_k = nullptr) {
  PlanOptions options;
  options.threads = threads;
  options.kernel = kernel;
  const Result<Plan> plan = make_plan(c.p, *cpu::cpu_device(), options, registry());
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  if (!plan) return {};
  const GuardedBytes o(c.bytes(TensorId::kO));
  const GuardedBytes lse(size_t(c.p.num_rows()) * 4);
  const GuardedBytes workspace(size_t(plan->workspace_bytes + 63) / 64 * 64);
  ForwardArgs args;
  args.q = c.q.data();
  args.k = c.k.data();
  args.v = c.v.data();
  args.o = o.data();
  args.lse = reinterpret_cast<float*>(lse.data());
  args.alibi_slopes = c.p.alibi ? c.slopes.data() : nullptr;
  args.cu_seqlens_q = !c.p.varlen ? nullptr : cu_q != nullptr ? cu_q : c.cu_q.data();
  args.cu_seqlens_k = !c.p.varlen ? nullptr : cu_k != nullptr ? cu_k : c.cu_k.data();
  args.workspace = workspace.data();
  args.workspace_bytes = plan->workspace_bytes;
  const Status status = run_forward(*plan, args);
  EXPECT_TRUE(status.ok()) << status.message();
  Outcome out;
  out.o.assign(o.data(), o.size());
  out.lse.assign(args.lse, args.lse + c.p.num_rows());
  return out;
}

// Rules A1 and A3 with room for fp32 chains; exact where the reference is exact.
void expect_close(const Case& c, const Outcome& got, const Outcome& want, const std::string& what,
                  double slack = 1) {
  const double u = unit_roundoff(c.p.dtype);
  double square = 0, error = 0;
  std::vector<bool> written(got.o.size());
  c.each(TensorId::kO, [&](int64_t i) {
    const double a = got.value(c.p, i), b = want.value(c.p, i);
    for (int n = 0; n < size_of(c.p.dtype); ++n) {
      written[size_t(i * size_of(c.p.dtype) + n)] = true;
    }
    if (std::isnan(b)) {
      EXPECT_TRUE(std::isnan(a)) << what << " o[" << i << "] " << a;
    } else if (!std::isfinite(b)) {
      EXPECT_FALSE(std::isfinite(a)) << what << " o[" << i << "] " << a;
    } else {
      if (b == 0) {
        EXPECT_EQ(a, 0) << what << " o[" << i << "]";
      }
      square += b * b;
      error += (a - b) * (a - b);
      ASSERT_TRUE(std::isfinite(a)) << what << " o[" << i << "] " << a << " want " << b;
    }
  });
  EXPECT_LE(std::sqrt(error),
            (c.p.dtype == DType::kFp32 ? 48 : 1.5) * u * slack * std::sqrt(square))
      << what;
  for (size_t i = 0; i < written.size(); ++i) {  // B059
    if (!written[i]) {
      ASSERT_EQ(got.o[i], '\xff') << what << ": wrote into the gap at byte " << i;
    }
  }
  for (size_t r = 0; r < got.lse.size(); ++r) {
    const float a = got.lse[r], b = want.lse[r];
    if (std::isfinite(b)) {
      EXPECT_NEAR(a, b, 4e-6 * std::max(1.0f, std::abs(b))) << what << " lse[" << r << "]";
    } else if (std::isnan(b)) {
      EXPECT_TRUE(std::isnan(a)) << what << " lse[" << r << "]";
    } else {
      EXPECT_EQ(a, b) << what << " lse[" << r << "]";
    }
  }
}

void check(const std::string& line, uint64_t seed = 1, double slack = 1) {
  SCOPED_TRACE(line);
  const Case c(line, seed);
  const Outcome want = run(c, "cpu.reference");
  for (const std::string& kernel : decode_kernels(c.p)) {
    const Outcome got = run(c, kernel);
    expect_close(c, got, want, kernel, slack);
    EXPECT_TRUE(got == run(c, kernel, 3)) << kernel << ": bits depend on the number of threads";
  }
}

TEST(Decode, AgreesWithTheReference) {
  Thinned thinned;
  for (const char* type : {"fp32", "fp16", "bf16"}) {
    for (const char* shape :
         {"b2 sq1 sk1500 h8 hk2 d128", "b1 sq1 sk4100 h2 d64", "b1 sq1 sk33 h16 hk1 d40 dv72",
          "b2 sq4 sk2200 h6 hk3 d80 dv48", "b1 sq2 sk257 h14 hk2 d1 dv3", "b1 sq5 sk70 h3 hk1 d31",
          "b3 sq1 sk1025 h4 hk4 d512 dv512", "b1 sq16 sk1100 h1 d96",
          "b1 sq3 sk2048 h2 d7 dv200"}) {
      for (const char* words : {"", "causal", "window:100,3", "window:1030,-1",
                                "window:-1,2 topleft", "softcap:2 causal", "alibi",
                                "alibi window:1200,0 softcap:30", "scale:-0.3", "scale:0"}) {
        if (thinned.skips()) continue;
        check(std::string(type) + " " + shape + " " + words);
      }
    }
  }
}

// Enough bytes for K and V in turns (kDecodeTurnsFrom).
TEST(Decode, ReadsKAndVInTurns) {
  for (const char* line :
       {"fp32 b1 sq1 sk5003 h8 d128", "bf16 b1 sq1 sk5003 h8 d256",
        "fp16 b1 sq1 sk6001 h7 d250 window:5500,0", "bf16 b6 sq1 sk700 h16 d128 layout:bhsd"}) {
    check(line);
  }
}

// fp32 results are the same bits for every instruction set.
TEST(Decode, GivesTheSameBitsForEveryInstructionSet) {
  for (const char* line :
       {"fp32 b1 sq1 sk1500 h2 d128", "fp32 b1 sq1 sk700 h9 d64",
        "fp32 b1 sq1 sk2100 h4 hk2 d40 dv72", "fp32 b2 sq1 sk333 h8 hk2 d128 layout:bhsd",
        "fp32 b1 sq3 sk1090 h2 hk1 d1 dv3 causal",
        "fp32 b1 sq2 sk1070 h18 hk3 d31 window:900,1 alibi softcap:20", "fp32 b1 sq16 sk40 h1 d96",
        "fp32 b1 sq5 sk1100 h3 hk1 d80 alibi causal", "fp32 b1 sq9 sk65 h1 d512 dv500 scale:-0.3",
        "fp32 varlen:q=1,0,3,2:k=5,9,2500,1 h6 hk3 d24 causal", "fp32 b1 sq1 sk5003 h8 d128",
        "fp32 b1 sq1 sk6001 h5 d201 alibi"}) {
    SCOPED_TRACE(line);
    const Case c(line);
    const Outcome want = run(c, "cpu.decode.scalar");
    for (const std::string& kernel : decode_kernels(c.p))
      EXPECT_TRUE(run(c, kernel) == want) << kernel;
  }
}

TEST(Decode, AnyStrides) {
  for (const char* type : {"fp32", "bf16"}) {
    for (const char* words :
         {"layout:bhsd", "layout:qkv causal", "stride:k=100000,131,33 stride:v=90000,77,11",
          "stride:o=9000,1111,101"}) {
      check(std::string(type) + " b2 sq2 sk300 h4 hk2 d32 dv8 " + words);
    }
    check(std::string(type) + " b2 sq2 sk300 h4 hk2 d32 stride:k=0,32,0 stride:v=0,0,0");  // inputs
  }
}

// B002, B025, B044, B049, B052: every length, with the last byte of k and v at a page's end.
TEST(Decode, EveryLengthUpTo600) {
  std::mt19937 random(7);
  for (int sk = 1; sk <= 600; sk += 1 + int(random() % 3)) {
    const char* type = sk % 3 == 0 ? "fp32" : sk % 3 == 1 ? "fp16" : "bf16";
    check(std::string(type) + " b1 sq1 sk" + std::to_string(sk) + " h1 d32", uint64_t(sk));
    check(std::string(type) + " b1 sq1 sk" + std::to_string(sk) + " h6 hk1 d24", uint64_t(sk));
  }
}

TEST(Decode, AroundChunks) {
  for (int chunks = 1; chunks <= 3; ++chunks) {
    for (int d = -2; d <= 2; ++d) {
      const std::string sk = std::to_string(chunks * int(cpu::kDecodeChunk) + d);
      check("fp32 b1 sq1 sk" + sk + " h2 d16");
      check("bf16 b1 sq3 sk" + sk + " h4 hk2 d16 causal");
      check("fp16 b1 sq3 sk" + sk + " h4 hk2 d16 window:1023,1");
      check("fp16 b1 sq3 sk" + sk + " h4 hk2 d16 window:3,1 topleft");
    }
  }
}

// B011, B012, B013, B133: rows without keys are (0, -inf), alone and beside others.
TEST(Decode, EmptyRows) {
  check("fp32 b1 sq8 sk3 h2 hk1 d16 causal");
  check("bf16 b2 sq4 sk0 h4 hk1 d16");
  check("fp32 b1 sq4 sk2000 h1 d16 window:5,-1 topleft");
  check("fp16 varlen:q=1,1,1:k=5,0,7 h4 hk2 d24");
  check("fp32 varlen:q=0,3,0,2,1:k=4,0,0,1,2500 h2 hk1 d24 causal");
  const Case c("fp32 varlen:q=1,2:k=0,0 h4 hk2 d24");
  for (const std::string& kernel : decode_kernels(c.p)) {
    const Outcome got = run(c, kernel);
    for (const float x : got.lse) EXPECT_EQ(x, -kInfinity);
    for (size_t i = 0; i < got.o.size(); ++i) ASSERT_EQ(got.o[i], 0);
  }
}

// B103
TEST(Decode, SequencesWithoutQueries) { check("bf16 varlen:q=1,0,1:k=3,0,5 h9 hk3 d64 causal"); }

// B005, B073, batch-invariant: a sequence's bits do not depend on its neighbours.
TEST(Decode, NeighboursDoNotMatter) {
  for (const char* type : {"fp32", "bf16"}) {
    const std::string rest = " h32 hk4 d128 causal";  // rows enough for every kernel
    const Case all(std::string(type) + " varlen:q=1,2,1,1:k=900,2100,120,500" + rest);
    for (const std::string& kernel : decode_kernels(all.p)) {
      const Outcome together = run(all, kernel);
      for (size_t b = 0; b + 1 < all.cu_q.size(); ++b) {
        // The same memory, all other sequences empty.
        std::vector<int32_t> q = all.cu_q, k = all.cu_k;
        for (size_t i = 0; i < q.size(); ++i) {
          q[i] = all.cu_q[i <= b ? b : b + 1];
          k[i] = all.cu_k[i <= b ? b : b + 1];
        }
        q[0] = k[0] = 0;
        Case alone(std::string(type) +
                   " varlen:q=" + std::to_string(all.cu_q[b + 1] - all.cu_q[b]) +
                   ":k=" + std::to_string(all.cu_k[b + 1] - all.cu_k[b]) + rest);
        const int64_t size = size_of(all.p.dtype);
        const auto copy = [&](const GuardedBytes& to, const GuardedBytes& from, int64_t start) {
          std::memcpy(to.data(), from.data() + start * size, to.size());
        };
        copy(alone.q, all.q, all.cu_q[b] * all.p.stride(TensorId::kQ).seqlen);
        copy(alone.k, all.k, all.cu_k[b] * all.p.stride(TensorId::kK).seqlen);
        copy(alone.v, all.v, all.cu_k[b] * all.p.stride(TensorId::kV).seqlen);
        const Outcome one = run(alone, kernel);
        const size_t at = size_t(all.cu_q[b] * all.p.stride(TensorId::kO).seqlen * size);
        EXPECT_EQ(one.o, together.o.substr(at, one.o.size())) << kernel << " sequence " << b;
      }
    }
  }
}

// A non-finite value in a hidden key, its value or padding is the same as zero, bit for bit.
TEST(Decode, HiddenValuesDoNotMatter) {
  for (const char* line :
       {"fp32 b1 sq5 sk1100 h2 hk1 d40 causal", "bf16 b1 sq4 sk90 h4 hk1 d72 window:9,2",
        "fp16 b1 sq3 sk2100 h1 d24 window:1030,1 alibi softcap:3",
        "fp32 b1 sq7 sk3 h2 hk1 d16 causal"}) {
    SCOPED_TRACE(line);
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      // Row by row: everything that the row does not see is bad; the row may not change.
      for (int64_t i = 0; i < Case(line).p.seqlen_q; ++i) {
        Case zero(line), poisoned(line);
        const Lengths n{zero.p.seqlen_q, zero.p.seqlen_k};
        for (int64_t j = 0; j < n.k; ++j) {
          if (zero.p.mask.visible(i, j, n)) continue;
          for (int64_t h = 0; h < zero.p.num_heads_kv; ++h) {
            for (int64_t x = 0; x < zero.p.head_dim; ++x) {
              for (auto* c : {&zero, &poisoned}) {
                const float value = c == &zero ? 0.0f : bad;
                put(c->k.data(), c->at(TensorId::kK, 0, j, h, x), c->p.dtype, value);
                put(c->v.data(), c->at(TensorId::kV, 0, j, h, x), c->p.dtype, value);
              }
            }
          }
        }
        for (const std::string& kernel : decode_kernels(zero.p)) {
          const Outcome a = run(zero, kernel), b = run(poisoned, kernel);
          for (int64_t h = 0; h < zero.p.num_heads; ++h) {
            const size_t at = size_t(zero.at(TensorId::kO, 0, i, h, 0) * size_of(zero.p.dtype));
            const size_t length = size_t(zero.p.head_dim_v * size_of(zero.p.dtype));
            ASSERT_EQ(a.o.substr(at, length), b.o.substr(at, length)) << kernel << " row " << i;
            const size_t row = size_t(h * n.q + i);
            ASSERT_EQ(std::memcmp(&a.lse[row], &b.lse[row], 4), 0) << kernel << " row " << i;
          }
        }
      }
    }
  }
}

// Scores of NaN and +inf make their row NaN and no other; -inf has weight 0.
TEST(Decode, NonFiniteScores) {
  for (const char* line : {"fp32 b1 sq3 sk1200 h2 hk1 d16", "bf16 b1 sq1 sk40 h3 hk1 d16",
                           "fp16 b1 sq2 sk7 h8 hk1 d40"}) {
    SCOPED_TRACE(line);
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      for (const int64_t key : {0, 3, 39, 1100}) {
        Case c(line);
        if (key >= c.p.seqlen_k) continue;
        // Only channel 0 of the key is bad, and only the queries of head 0 look at it.
        c.each(TensorId::kQ, [&](int64_t i) { put(c.q.data(), i, c.p.dtype, 0.25f); });
        put(c.k.data(), c.at(TensorId::kK, 0, key, 0, 0), c.p.dtype, bad);
        const Outcome want = run(c, "cpu.reference");
        for (const std::string& kernel : decode_kernels(c.p)) {
          expect_close(c, run(c, kernel), want, kernel);
        }
      }
    }
    Case c(line);  // every score -inf: empty rows
    c.each(TensorId::kQ, [&](int64_t i) { put(c.q.data(), i, c.p.dtype, 1.0f); });
    c.each(TensorId::kK, [&](int64_t i) { put(c.k.data(), i, c.p.dtype, -kInfinity); });
    const Outcome want = run(c, "cpu.reference");
    for (const std::string& kernel : decode_kernels(c.p)) {
      expect_close(c, run(c, kernel), want, kernel);
    }
  }
}

TEST(Decode, LargeScores) {
  const std::string shape = "fp32 b1 sq1 sk3000 h4 hk1 d64 ";
  check(shape + "scale:3");
  check(shape + "scale:-40", 1, 100);  // scores near 1000: a rounding of one is 2^-14
  check(shape + "scale:1e4", 1, 1e5);
}

TEST(Decode, SaysWhyNot) {
  Device device;  // one that has everything
  device.isa = CpuIsa::kAvx512Bf16;
  for (const KernelEntry* e : cpu::decode_entries()) {
    Answer a = e->supports(*parse_problem("bf16 b1 sq3 sk9 h12 hk2 d64"), device);
    EXPECT_FALSE(a.yes);
    EXPECT_NE(a.reason.find("seqlen_q 3 x 6"), std::string::npos) << a.reason;
    a = e->supports(*parse_problem("fp64 b1 sq1 sk9 h8 hk2 d64"), device);
    EXPECT_NE(a.reason.find("fp64"), std::string::npos) << a.reason;
    a = e->supports(*parse_problem("fp32 b1 sq1 sk9 h8 hk2 d64"), device);
    if (e->name == "cpu.decode.avx512bf16") {
      EXPECT_EQ(a.reason, "dtype fp32 is not bf16");
      a = e->supports(*parse_problem("bf16 b1 sq1 sk9 h8 hk2 d64"), device);
      EXPECT_EQ(a.reason, "4 heads per kv head < 5");
      EXPECT_TRUE(e->supports(*parse_problem("bf16 b1 sq1 sk9 h5 hk1 d64"), device).yes);
    }
    EXPECT_FALSE(e->supports(*parse_problem("bf16 b1 sq1 sk9 h8 d600"), device).yes);
    EXPECT_FALSE(e->supports(*parse_problem("bf16 b1 sq1 sk9 h8 d64 backward"), device).yes);
    Device scalar = device;
    scalar.isa = CpuIsa::kScalar;
    EXPECT_EQ(e->supports(*parse_problem("bf16 b1 sq1 sk9 h8 d64"), scalar).yes,
              e->name == "cpu.decode.scalar");
  }
}

TEST(Decode, PlanFollowsShapeOnly) {
  const std::string kernel = "cpu.decode.scalar";
  PlanOptions options;
  options.kernel = kernel;
  options.threads = 1;
  const Plan one = *make_plan(*parse_problem("fp32 b1 sq1 sk5000 h8 hk2 d64"), *cpu::cpu_device(),
                              options, registry());
  options.threads = 7;
  const Plan seven = *make_plan(one.problem, *cpu::cpu_device(), options, registry());
  EXPECT_EQ(one.shape.num_splits, 5);
  EXPECT_EQ(seven.shape.num_splits, 5);
  const Result<Plan> huge = make_plan(
      *parse_problem("bf16 b1000000000 sq1 sk2000000000 h64 d512 stride:k=0,1,0 stride:v=0,1,0"
                     " stride:q=0,1,0"),
      *cpu::cpu_device(), options, registry());
  EXPECT_FALSE(huge.ok());
}

}  // namespace
}  // namespace tilewise
