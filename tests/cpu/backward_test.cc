// The CPU backward of every instruction set this machine has, against a loop in fp64 over the same
// inputs (o and lse among them), and against itself: other threads, other instruction sets, other
// neighbours in the batch.
#include <gtest/gtest.h>

#include "backward_call.h"

namespace tilewise {
namespace {

using namespace testing_backward;

std::vector<std::string> kernels(DType dtype) {
  const CpuIsa best = cpu::cpu_device()->isa;  // TILEWISE_CPU_ISA counts
  std::vector<std::string> names = {"cpu.backward.scalar"};
  if (best >= CpuIsa::kAvx2) names.push_back("cpu.backward.avx2");
  if (best >= CpuIsa::kAvx512) names.push_back("cpu.backward.avx512");
  if (best >= CpuIsa::kAvx512Bf16 && dtype == DType::kBf16) {
    names.push_back("cpu.backward.avx512bf16");
  }
  return names;
}

void expect_close(const Call& call, const std::vector<std::vector<double>>& expected,
                  const std::string& what) {
  const DType dtype = call.p().dtype;
  const double limit = (dtype == DType::kFp32 ? 40.0 : 1.5) * unit_roundoff(dtype);
  for (int g = 0; g < 3; ++g) {
    double error = 0.0, norm = 0.0, worst = 0.0;
    int64_t elements = 0;
    call.for_each(kGradients[g], [&](int64_t at) {
      const double got = value_at(call.data(kGradients[g]), at, dtype), want = expected[g][at];
      const double diff = std::isfinite(got) ? got - want : kInfinity;
      error += diff * diff;
      norm += want * want;
      worst = std::max(worst, std::abs(diff));
      ++elements;
    });
    // Where all of a gradient cancels (one key: dP = delta), only its rounding is left.
    const double floor = 4.0 * unit_roundoff(dtype) * std::sqrt(static_cast<double>(elements));
    EXPECT_LE(std::sqrt(error),
              limit * std::sqrt(norm) + (norm < 1e-3 * static_cast<double>(elements) ? floor : 0.0))
        << what << ": " << name_of(kGradients[g]) << ", relative "
        << std::sqrt(error / std::max(norm, 1e-300)) << ", worst " << worst;
  }
}

// What lies between the rows of a gradient stays as it was.
void expect_gaps_untouched(const Call& call, const std::string& what) {
  for (const TensorId t : kGradients) {
    std::vector<unsigned char> bytes = call.memory[static_cast<int>(t)];
    const int size = size_of(call.p().dtype);
    call.for_each(t, [&](int64_t at) { std::memset(bytes.data() + at * size, 0xFF, size); });
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](int x) { return x == 0xFF; }))
        << what << ": " << name_of(t) << " written between its rows";
  }
}

class BackwardCase : public testing::TestWithParam<const char*> {};

TEST_P(BackwardCase, MatchesFp64) {
  for (const char* dtype : {"fp32 ", "fp16 ", "bf16 "}) {
    Call call(dtype + std::string(GetParam()) + " backward seed:3");
    call.forward();
    const auto expected = call.expected();
    for (const std::string& kernel : kernels(call.p().dtype)) {
      const std::string what = kernel + " " + print(call.c);
      call.backward(kernel, 2);
      expect_close(call, expected, what);
      expect_gaps_untouched(call, what);
    }
  }
}

// Threads decide how heads are cut into tasks and who sums dq; no bit may show it (D4; B061).
TEST_P(BackwardCase, SameBitsForAnyThreadCountAndInstructionSet) {
  for (const char* dtype : {"fp32 ", "bf16 "}) {
    Call call(dtype + std::string(GetParam()) + " backward seed:4");
    call.forward();
    std::vector<std::vector<unsigned char>> fp32_math;
    for (const std::string& kernel : kernels(call.p().dtype)) {
      call.backward(kernel, 1);
      const auto one = call.gradients();
      for (const int threads : {2, 7}) {
        call.backward(kernel, threads);
        EXPECT_EQ(one, call.gradients())
            << kernel << ", threads " << threads << ": " << print(call.c);
      }
      if (kernel == "cpu.backward.avx512bf16") continue;  // vdpbf16ps: a class of its own
      if (fp32_math.empty()) fp32_math = one;
      EXPECT_EQ(fp32_math, one) << kernel << " differs from scalar: " << print(call.c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Lines, BackwardCase,
    testing::Values(
        "b1 sq1 sk1 h1 d1", "b2 sq3 sk5 h1 d7 dv3", "b1 sq64 sk64 h1 d64", "b1 sq65 sk63 h2 d40",
        "b1 sq130 sk129 h4 hk2 d72", "b1 sq97 sk200 h3 hk1 d104 dv33",    // B016
        "b1 sq70 sk70 h2 d64 causal", "b1 sq200 sk77 h2 hk1 d32 causal",  // empty rows
        "b1 sq77 sk200 h2 hk1 d32 causal", "b1 sq77 sk200 h2 hk1 d32 causal topleft",
        "b1 sq200 sk77 h1 d20 dv36 causal topleft", "b1 sq150 sk150 h2 hk2 d16 window:20,5",
        "b1 sq150 sk190 h2 hk1 d16 window:0,0", "b1 sq190 sk90 h4 hk1 d24 window:-1,30 topleft",
        "b2 sq100 sk90 h2 d32 softcap:5", "b2 sq100 sk90 h2 hk1 d32 softcap:2 causal",  // B078
        "b2 sq100 sk90 h4 hk2 d32 alibi", "b2 sq100 sk90 h2 hk1 d32 alibi causal softcap:3",
        "b1 sq60 sk70 h2 d48 scale:0", "b1 sq60 sk70 h2 d48 scale:-0.2 causal",
        "b1 sq3 sk1100 h2 hk1 d16", "b1 sq140 sk1030 h2 d24 causal",  // super-blocks
        "b1 sq1100 sk1100 h1 d8 causal", "b1 sq600 sk600 h2 hk1 d8 window:100,-1",
        "b5 sq70 sk530 h4 hk2 d9 causal", "b1 sq20 sk40 h1 d200 dv512",
        "b1 sq20 sk40 h1 d512 dv130", "b2 sq66 sk40 h4 hk2 d24 layout:bhsd",
        "b2 sq66 sk66 h4 hk2 d24 dv8 layout:qkv causal",
        "b2 sq33 sk40 h2 d24 stride:do=5000,24,2000 stride:dq=4000,60,30 stride:k=0,48,24",  // B001
        "varlen:q=3,0,7:k=5,2,7 h2 d16", "varlen:q=0,7:k=5,7 h1 d16 causal",                 // B040
        "varlen:q=76,34,146:k=1,1,1 h1 d32 causal",                                          // B027
        "b1 sq70 sk2100 h1 d8", "b1 sq20 sk4200 h2 hk1 d8 causal",  // long super-blocks
        "varlen:q=3,9,5:k=2047,2048,600 h2 hk1 d8",
        "varlen:q=10,600,3:k=700,20,520 h4 hk2 d20 dv12 causal", "b1 sq5 sk0 h2 d8",
        "b2 sq0 sk5 h2 hk1 d8", "varlen:q=5,4:k=0,600 h2 hk1 d8 causal alibi"));

// Rows without a key and keys without a query: exactly 0 (E1; B031, B040).
TEST(Backward, UnseenGetsZeros) {
  Call call("fp32 b1 sq100 sk60 h2 hk1 d16 window:10,0 backward");
  call.forward();
  for (const std::string& kernel : kernels(call.p().dtype)) {
    call.backward(kernel, 1);
    for (int64_t i = 0; i < 40; ++i) {
      EXPECT_EQ(call.at(TensorId::kDq, 0, i, 1, 5), 0.0) << kernel << " dq row " << i;
    }
  }
  Call keys("bf16 b1 sq30 sk100 h1 d16 window:0,0 topleft backward");
  keys.forward();
  for (const std::string& kernel : kernels(keys.p().dtype)) {
    keys.backward(kernel, 1);
    for (int64_t j = 30; j < 100; ++j) {
      EXPECT_EQ(keys.at(TensorId::kDk, 0, j, 0, 3), 0.0) << kernel << " dk row " << j;
      EXPECT_EQ(keys.at(TensorId::kDv, 0, j, 0, 3), 0.0) << kernel << " dv row " << j;
    }
  }
}

// One sequence alone, beside others, dense and varlen: the same bits.
TEST(Backward, NeighboursDoNotShow) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const std::string tail = " h4 hk2 d40 causal alibi backward";
    Call alone(std::string(dtype) + " b1 sq90 sk600" + tail);
    Call packed(std::string(dtype) + " varlen:q=20,90,1:k=3,600,700" + tail);
    alone.forward();
    for (const TensorId t : {TensorId::kQ, TensorId::kK, TensorId::kV, TensorId::kDo}) {
      const Extents e = alone.p().extents(t);
      for (int64_t i = 0; i < e.seqlen; ++i) {
        std::memcpy(static_cast<char*>(packed.data(t)) +
                        packed.element(t, 1, i, 0) * size_of(alone.p().dtype),
                    static_cast<char*>(alone.data(t)) +
                        alone.element(t, 0, i, 0) * size_of(alone.p().dtype),
                    static_cast<size_t>(e.heads * e.dim * size_of(alone.p().dtype)));
      }
    }
    packed.forward();
    for (const std::string& kernel : kernels(alone.p().dtype)) {
      alone.backward(kernel, 1);
      packed.backward(kernel, 3);
      for (const TensorId t : kGradients) {
        const Extents e = alone.p().extents(t);
        for (int64_t i = 0; i < e.seqlen; ++i) {
          for (int64_t h = 0; h < e.heads; ++h) {
            for (int64_t x = 0; x < e.dim; ++x) {
              ASSERT_EQ(alone.at(t, 0, i, h, x), packed.at(t, 1, i, h, x))
                  << kernel << " " << name_of(t) << " " << i << " " << h << " " << x;
            }
          }
        }
      }
    }
  }
}

// E4: what no visible pair touches may hold anything. Row 0..19 see no key; key 0 is seen by row
// 20 alone, whose lse says that it is empty.
TEST(Backward, HiddenNonFiniteValuesAreZeros) {
  for (const char* dtype : {"fp32", "bf16"}) {
    for (const char* shape :
         {" b1 sq100 sk80 h2 hk1 d24 dv40 causal", " b1 sq100 sk80 h1 d64 causal"}) {
      Call clean(std::string(dtype) + shape + " backward");
      clean.forward();
      const DType type = clean.p().dtype;
      for (int64_t h = 0; h < clean.p().num_heads; ++h) {
        clean.lse[clean.row(0, 20, h)] = -std::numeric_limits<float>::infinity();
      }
      Call dirty = clean;
      const auto fill = [&](Call& call, TensorId t, int64_t i, int64_t h, double value) {
        for (int64_t x = 0; x < call.p().extents(t).dim; ++x) {
          set_value(call.data(t), call.element(t, 0, i, h) + x, type, value);
        }
      };
      // Key 79 loses its only viewer, row 99; key 0 is seen by rows 20.. and stays finite.
      for (int64_t h = 0; h < clean.p().num_heads; ++h) {
        clean.lse[clean.row(0, 99, h)] = -std::numeric_limits<float>::infinity();
        dirty.lse[dirty.row(0, 99, h)] = -std::numeric_limits<float>::infinity();
        for (int64_t i = 0; i <= 20; ++i) {
          const double bad = i % 3 == 0 ? NAN : i % 3 == 1 ? kInfinity : -kInfinity;
          for (const TensorId t : {TensorId::kQ, TensorId::kO, TensorId::kDo}) {
            fill(clean, t, i, h, 0.0);
            fill(dirty, t, i, h, bad);
          }
          if (i < 20) dirty.lse[dirty.row(0, i, h)] = static_cast<float>(bad);
        }
      }
      fill(clean, TensorId::kK, 79, 0, 0.0), fill(dirty, TensorId::kK, 79, 0, NAN);
      fill(clean, TensorId::kV, 79, 0, 0.0), fill(dirty, TensorId::kV, 79, 0, -kInfinity);
      for (const std::string& kernel : kernels(type)) {
        clean.backward(kernel, 1);
        dirty.backward(kernel, 1);
        EXPECT_EQ(clean.gradients(), dirty.gradients()) << kernel << " " << print(clean.c);
      }
    }
  }
}

// E3: a visible non-finite value reaches what depends on it and nothing else.
TEST(Backward, VisibleNonFiniteValuesPoison) {
  for (const char* dtype : {"fp32", "fp16", "bf16"}) {
    const std::string line = std::string(dtype) + " b1 sq150 sk150 h1 d24 causal backward";
    Call clean(line);
    clean.forward();
    for (const TensorId bad : {TensorId::kQ, TensorId::kK, TensorId::kV, TensorId::kDo}) {
      for (const double value : {double(NAN), kInfinity}) {
        Call call = clean;
        const int64_t at = 70;  // a row or a key
        set_value(call.data(bad), call.element(bad, 0, at, 0) + 5, call.p().dtype, value);
        for (const std::string& kernel : kernels(call.p().dtype)) {
          const std::string what = kernel + " " + print(call.c) + " " + name_of(bad);
          clean.backward(kernel, 1);
          call.backward(kernel, 1);
          const bool key = bad == TensorId::kK || bad == TensorId::kV;
          for (int64_t i = 0; i < 150; ++i) {
            // Rows that see key 70, or row 70 itself; keys that those rows see.
            const bool dq_hit = key ? i >= at : i == at;
            const bool dk_hit = key ? i == at : i <= at;
            if (!dq_hit) {
              EXPECT_EQ(clean.at(TensorId::kDq, 0, i, 0, 3), call.at(TensorId::kDq, 0, i, 0, 3))
                  << what << " row " << i;
            } else {
              EXPECT_FALSE(std::isfinite(call.at(TensorId::kDq, 0, i, 0, 5))) << what << i;
            }
            if (!dk_hit) {
              EXPECT_EQ(clean.at(TensorId::kDk, 0, i, 0, 3), call.at(TensorId::kDk, 0, i, 0, 3))
                  << what << " key " << i;
              EXPECT_EQ(clean.at(TensorId::kDv, 0, i, 0, 5), call.at(TensorId::kDv, 0, i, 0, 5))
                  << what << " key " << i;
            } else {
              EXPECT_FALSE(std::isfinite(call.at(TensorId::kDk, 0, i, 0, 5))) << what << i;
            }
          }
        }
      }
    }
  }
}

// A row whose lse says that it is empty has gradient 0 whatever v holds, in full blocks too.
TEST(Backward, EmptyByLse) {
  for (const char* dtype : {"fp32", "bf16"}) {
    Call call(std::string(dtype) + " b1 sq128 sk128 h1 d64 backward");
    call.forward();
    call.lse[5] = -std::numeric_limits<float>::infinity();
    set_value(call.data(TensorId::kV), call.element(TensorId::kV, 0, 3, 0), call.p().dtype,
              kInfinity);
    for (const std::string& kernel : kernels(call.p().dtype)) {
      call.backward(kernel, 1);
      for (int64_t x = 0; x < 64; ++x) {
        EXPECT_EQ(call.at(TensorId::kDq, 0, 5, 0, x), 0.0) << kernel;
        EXPECT_FALSE(std::isfinite(call.at(TensorId::kDq, 0, 4, 0, x))) << kernel;
      }
    }
  }
}

// B036: every logit near -120, so lse < -88.7.
TEST(Backward, LowLogits) {
  for (const int64_t s : {64, 130, 192}) {
    for (const char* mask : {"", " causal"}) {
      Call call("fp32 b1 sq" + std::to_string(s) + " sk" + std::to_string(s) + " h1 d16" + mask +
                " backward");
      for (int64_t i = 0; i < s; ++i) {
        for (int64_t x = 0; x < 16; ++x) {
          float* q = static_cast<float*>(call.data(TensorId::kQ)) + i * 16 + x;
          float* k = static_cast<float*>(call.data(TensorId::kK)) + i * 16 + x;
          *q = x == 0 ? 1.0f : *q * 0.1f;
          *k = x == 0 ? -480.0f : *k * 0.1f;
        }
      }
      call.forward();
      const auto expected = call.expected();
      for (const std::string& kernel : kernels(call.p().dtype)) {
        call.backward(kernel, 1);
        for (int g = 0; g < 3; ++g) {
          call.for_each(kGradients[g], [&](int64_t at) {
            const double got = value_at(call.data(kGradients[g]), at, DType::kFp32);
            // dq[0] is -480 times a sum of dS that cancels: 400 roundings of one term.
            const double slack = g == 0 && at % 16 == 0 ? 480 * 400 * 0x1p-24 : 1e-4;
            EXPECT_NEAR(got, expected[g][at], slack + 4e-4 * std::abs(expected[g][at])) << kernel;
          });
        }
      }
    }
  }
}

Answer answer(const std::string& kernel, const std::string& line, CpuIsa isa) {
  Device device;
  device.isa = isa;
  const Registry registry(cpu::backward_entries());
  return registry.find(kernel)->supports(*parse_problem(line), device);
}

TEST(Backward, RefusalsSayWhy) {
  EXPECT_EQ(answer("cpu.backward.scalar", "fp32 b1 sq1 sk1 h1 d8", CpuIsa::kScalar).reason,
            "direction is forward");
  EXPECT_EQ(answer("cpu.backward.scalar", "fp64 b1 sq1 sk1 h1 d8 backward", CpuIsa::kScalar).reason,
            "dtype fp64 is computed by cpu.reference only");
  EXPECT_EQ(
      answer("cpu.backward.scalar", "fp32 b1 sq1 sk1 h1 d513 backward", CpuIsa::kScalar).reason,
      "head_dim 513 > 512");
  EXPECT_EQ(
      answer("cpu.backward.scalar", "fp32 b1 sq1 sk1 h1 d8 dv600 backward", CpuIsa::kScalar).reason,
      "head_dim_v 600 > 512");
}

// Partials of all heads in flight stay below 64 MiB; one head alone may need more, but never its
// length squared (the super-blocks go in waves too).
TEST(Backward, WorkspaceStaysSmall) {
  const Registry registry(cpu::backward_entries());
  Device device;
  const auto bytes = [&](const char* line, int threads) {
    PlanOptions options;
    options.threads = threads;
    const Result<Plan> plan = make_plan(*parse_problem(line), device, options, registry);
    EXPECT_TRUE(plan.ok()) << line;
    return plan.ok() ? plan->workspace_bytes : 0;
  };
  const int64_t mib = 1 << 20;
  EXPECT_LE(bytes("fp32 b1 sq512 sk512 h1 d128 backward", 1), 4 * mib);
  EXPECT_LE(bytes("fp32 b1 sq2048 sk2048 h16 d128 backward", 8), (64 + 8 * 4) * mib);
  EXPECT_LE(bytes("fp32 b1 sq1048576 sk1048576 h1 d64 backward", 2), int64_t{2} << 30);
  EXPECT_EQ(
      parse_problem("fp32 b2000000000 sq2000000000 sk1000 h1000 hk1 d1 backward").status().code(),
      StatusCode::kOverflow);
}

}  // namespace
}  // namespace tilewise
