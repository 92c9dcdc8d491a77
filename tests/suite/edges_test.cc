// Edge semantics E1 to E10: empty rows and shapes, hidden and non-finite elements, the lse.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "harness/data.h"
#include "harness/oracle.h"
#include "support.h"

namespace tilewise::suite {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A query row of a case: where it stands and what it may see.
struct QueryRow {
  int64_t b, s, h;  // as Tensors::get takes them
  int64_t query;    // within its sequence
  int64_t k_first;  // of its sequence's keys, as Tensors::get takes them
  Lengths n;
};
std::vector<QueryRow> query_rows(const ProblemCase& c) {
  const AttentionProblem& p = c.problem;
  std::vector<QueryRow> rows;
  int64_t q_start = 0, k_start = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Lengths n =
        p.varlen ? Lengths{c.lengths_q[b], c.lengths_k[b]} : Lengths{p.seqlen_q, p.seqlen_k};
    for (int64_t h = 0; h < p.num_heads; ++h) {
      for (int64_t i = 0; i < n.q; ++i) {
        rows.push_back(
            {p.varlen ? 0 : b, i + (p.varlen ? q_start : 0), h, i, p.varlen ? k_start : 0, n});
      }
    }
    q_start += n.q;
    k_start += n.k;
  }
  return rows;
}

bool is_positive_zero(double x) { return x == 0.0 && !std::signbit(x); }

TEST(Edges, RowsWithoutKeysAreZeroAndMinusInfinity_E1_B011_B012_B040_B046_B047_B127_B133) {
  Thinned thinned(5);
  const char* const shapes[] = {
      "b2 sq70 sk30 h4 hk2 d32 causal",
      "b1 sq8 sk3 h2 d64 causal",
      "b2 sq5 sk0 h2 d16",
      "b1 sq5 sk0 h2 d16 causal",
      "b1 sq1 sk0 h8 hk1 d64",
      "b1 sq90 sk40 h1 d24 window:3,2 topleft",
      "b1 sq129 sk129 h1 d64 window:0,0",
      "b1 sq60 sk20 h1 d16 window:4,-1 topleft",
      "varlen:q=5,0,7:k=0,7,3 h2 hk1 d32 causal",
      "varlen:q=0,7:k=5,12 h1 d32",
      "varlen:q=2,2,5:k=0,3,0 h3 d8",
      "varlen:q=1,1,1:k=5,0,7 h16 hk2 d64",
  };
  for (const char* dtype : {"fp32", "fp16", "bf16", "fp64"}) {
    for (const char* shape : shapes) {
      for (const char* direction : {"", " backward"}) {
        if (thinned.skips()) continue;
        const ProblemCase c = case_of(format("{} {}{}", dtype, shape, direction));
        const AttentionProblem& p = c.problem;
        for (const std::string& kernel : kernels_for(p)) {
          Tensors t(c);
          ASSERT_TRUE(harness::fill_inputs(t).ok());
          run_as_is(t, with_kernel(kernel));
          for (const QueryRow& r : query_rows(c)) {
            const Span keys = p.mask.keys_of(r.query, r.n);
            const float lse = t.get_lse(r.b, r.s, r.h);
            if (keys.begin < keys.end) {
              ASSERT_TRUE(std::isfinite(lse)) << print(c) << " " << kernel;
              continue;
            }
            ASSERT_EQ(lse, -kInf) << print(c) << " " << kernel << " row " << r.s;
            for (int64_t x = 0; x < p.head_dim_v; ++x) {
              ASSERT_TRUE(is_positive_zero(t.get(TensorId::kO, r.b, r.s, r.h, x)))
                  << print(c) << " " << kernel << " row " << r.s;
            }
            for (int64_t x = 0; p.backward() && x < p.head_dim; ++x) {
              ASSERT_EQ(t.get(TensorId::kDq, r.b, r.s, r.h, x), 0.0)
                  << print(c) << " " << kernel << " row " << r.s;
            }
          }
          if (HasFailure()) return;
        }
        for (const CpuIsa isa : levels_here()) {
          const IsaScope scope(isa);
          expect_accurate(c);
        }
      }
    }
  }
}

TEST(Edges, AnEmptyCaseIsTheSameOnEveryPath_B013) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const Outputs dense = run_filled(case_of(format("{} b1 sq1 sk0 h4 hk2 d16", dtype)));
    const ProblemCase varlen = case_of(format("{} varlen:q=1:k=0 h4 hk2 d16", dtype));
    for (const std::string& kernel : kernels_for(varlen.problem)) {
      EXPECT_EQ(difference_of(run_filled(varlen, with_kernel(kernel)), dense), "") << kernel;
    }
  }
}

TEST(Edges, EmptyShapesWriteNothing_E2_B053) {
  Thinned thinned(5);
  for (const char* dtype : {"fp32", "fp16", "bf16", "fp64"}) {
    for (const char* shape :
         {"b0 sq5 sk5 h2 d8", "b2 sq0 sk5 h2 d8", "b2 sq0 sk0 h2 d8", "b0 sq0 sk0 h1 d64 causal",
          "varlen:q=:k= h2 d8", "varlen:q=0,0:k=0,0 h2 d8", "varlen:q=0,0:k=3,4 h2 d8",
          "b1 sq0 sk300 h4 hk2 d64 window:3,3 alibi softcap:2"}) {
      for (const char* direction : {"", " backward"}) {
        if (thinned.skips()) continue;
        const ProblemCase c = case_of(format("{} {}{}", dtype, shape, direction));
        for (const std::string& kernel : kernels_for(c.problem)) {
          Tensors t(c);
          ASSERT_TRUE(harness::fill_inputs(t).ok());
          run_as_is(t, with_kernel(kernel));
          // Queries gone, keys there: their gradients are written, and are 0.
          const Extents e = c.problem.extents(TensorId::kDk);
          for (int64_t s = 0; c.problem.backward() && s < e.seqlen * e.batch; ++s) {
            ASSERT_EQ(t.get(TensorId::kDk, s / e.seqlen, s % e.seqlen, 0, 0), 0.0) << print(c);
            ASSERT_EQ(t.get(TensorId::kDv, s / e.seqlen, s % e.seqlen, 0, 0), 0.0) << print(c);
          }
        }
      }
    }
  }
}

// Sets row `s` of a tensor, in every head, to `value`.
void set_rows(Tensors& t, TensorId id, int64_t b, int64_t s, double value) {
  const Extents e = t.problem().extents(id);
  for (int64_t h = 0; h < e.heads; ++h) {
    for (int64_t x = 0; x < e.dim; ++x) t.set(id, b, s, h, x, value);
  }
}

// Keys and values that no query sees, and queries that see no key: whatever they hold, the outputs
// are those of zeros, bit for bit.
TEST(Edges, HiddenElementsMightAsWellBeZero_E4_B014_B023_B034) {
  Thinned thinned(5);
  const char* const shapes[] = {
      "b2 sq20 sk70 h2 hk1 d32 causal topleft",
      "b1 sq1 sk200 h4 hk2 d64 causal topleft",
      "b1 sq130 sk200 h1 d64 window:9,4 topleft",
      "b1 sq40 sk150 h2 d80 window:20,0",
      "b1 sq3 sk150 h2 d64 window:20,5 softcap:4 alibi",
      "varlen:q=9,30:k=20,64 h2 d16 causal topleft",
      "b1 sq90 sk30 h1 d40 causal",
  };
  for (const char* dtype : {"fp32", "fp16", "bf16", "fp64"}) {
    for (const char* shape : shapes) {
      for (const char* direction : {"", " backward"}) {
        if (thinned.skips()) continue;
        const ProblemCase c = case_of(format("{} {}{}", dtype, shape, direction));
        const AttentionProblem& p = c.problem;
        std::vector<std::vector<bool>> seen(
            p.extents(TensorId::kK).batch,
            std::vector<bool>(static_cast<size_t>(p.extents(TensorId::kK).seqlen)));
        std::vector<QueryRow> blind;
        for (const QueryRow& r : query_rows(c)) {
          const Span keys = p.mask.keys_of(r.query, r.n);
          if (keys.begin >= keys.end) blind.push_back(r);
          for (int64_t j = keys.begin; j < keys.end; ++j) seen[r.b][r.k_first + j] = true;
        }
        const auto hide = [&](double value) {
          return [&, value](Tensors& t) {
            for (size_t b = 0; b < seen.size(); ++b) {
              for (size_t s = 0; s < seen[b].size(); ++s) {
                if (seen[b][s]) continue;
                set_rows(t, TensorId::kK, int64_t(b), int64_t(s), value);
                set_rows(t, TensorId::kV, int64_t(b), int64_t(s), value);
              }
            }
            for (const QueryRow& r : blind) {
              set_rows(t, TensorId::kQ, r.b, r.s, value);
              if (p.backward()) set_rows(t, TensorId::kDo, r.b, r.s, value);
            }
          };
        };
        for (const std::string& kernel : kernels_for(p)) {
          const Outputs zeros = run_filled(c, with_kernel(kernel), hide(0.0));
          for (const double junk : {kNan, double{kInf}, -double{kInf}, 1e4}) {
            EXPECT_EQ(difference_of(run_filled(c, with_kernel(kernel), hide(junk)), zeros), "")
                << print(c) << " " << kernel << " hidden elements are " << junk;
          }
          if (HasFailure()) return;
        }
      }
    }
  }
}

// A non-finite key concerns the rows that see it and no others, whose bits it does not change.
TEST(Edges, NonFiniteKeysAndValuesSpoilOnlyTheRowsThatSeeThem_E3_E4) {
  Thinned thinned(5);
  const char* const shapes[] = {"b1 sq70 sk70 h2 hk1 d32 causal", "b1 sq50 sk130 h1 d64 window:9,3",
                                "b1 sq4 sk100 h4 hk2 d64 causal",
                                "varlen:q=20,30:k=25,66 h1 d24 window:5,0"};
  for (const char* dtype : {"fp32", "fp16", "bf16", "fp64"}) {
    for (const char* shape : shapes) {
      const ProblemCase c = case_of(format("{} {}", dtype, shape));
      const AttentionProblem& p = c.problem;
      const int64_t sk = p.extents(TensorId::kK).seqlen;
      if (thinned.skips()) continue;
      for (const std::string& kernel : kernels_for(p)) {
        const Outputs clean = run_filled(c, with_kernel(kernel));
        for (const TensorId id : {TensorId::kK, TensorId::kV}) {
          for (const int64_t key : {int64_t{0}, int64_t{24}, sk / 2, sk - 1}) {
            Tensors t(c);
            ASSERT_TRUE(harness::fill_inputs(t).ok());
            set_rows(t, id, 0, key, kNan);
            const Outputs spoiled = run_as_is(t, with_kernel(kernel));
            const std::vector<double> before = values_of(clean.o, p.dtype);
            for (const QueryRow& r : query_rows(c)) {
              const bool sees = key >= r.k_first && p.mask.visible(r.query, key - r.k_first, r.n);
              const int64_t at = harness::packed_index(p, TensorId::kO, r.b, r.s, r.h);
              const float lse = t.get_lse(r.b, r.s, r.h);
              const float lse_before =
                  clean.lse[static_cast<size_t>(harness::lse_index(p, r.b, r.s, r.h))];
              for (int64_t x = 0; x < p.head_dim_v; ++x) {
                const double o = t.get(TensorId::kO, r.b, r.s, r.h, x);
                ASSERT_TRUE(sees ? !std::isfinite(o) : o == before[static_cast<size_t>(at + x)])
                    << print(c) << " " << kernel << " " << name_of(id) << " key " << key << " row "
                    << r.s << " is " << o;
              }
              if (sees && id == TensorId::kK) {
                ASSERT_TRUE(std::isnan(lse)) << print(c) << " " << kernel;
              } else {
                ASSERT_EQ(std::bit_cast<uint32_t>(lse), std::bit_cast<uint32_t>(lse_before))
                    << print(c) << " " << kernel << " " << name_of(id) << " key " << key;
              }
            }
          }
        }
      }
    }
  }
}

// q = (a, 0...), k_j = (b_j, 0...): score j is a * b_j. Returns o[0] and lse of the row.
struct OneRow {
  double o, lse;
};
OneRow attend_once(const char* dtype, const std::string& kernel, double a,
                   const std::vector<double>& b) {
  const ProblemCase c = case_of(format("{} b1 sq1 sk{} h1 d8 scale:1", dtype, b.size()));
  Tensors t(c);
  EXPECT_TRUE(harness::fill_inputs(t).ok());
  set_rows(t, TensorId::kQ, 0, 0, 0.0);
  t.set(TensorId::kQ, 0, 0, 0, 0, a);
  for (size_t j = 0; j < b.size(); ++j) {
    set_rows(t, TensorId::kK, 0, static_cast<int64_t>(j), 0.0);
    t.set(TensorId::kK, 0, static_cast<int64_t>(j), 0, 0, b[j]);
    set_rows(t, TensorId::kV, 0, static_cast<int64_t>(j), static_cast<double>(j + 1));
  }
  run_as_is(t, with_kernel(kernel));
  return {t.get(TensorId::kO, 0, 0, 0, 0), t.get_lse(0, 0, 0)};
}

TEST(Edges, ScoresThatOverflow_E6_B035) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const ProblemCase c = case_of(format("{} b1 sq1 sk3 h1 d8 scale:1", dtype));
    for (const std::string& kernel : kernels_for(c.problem)) {
      const auto row = [&](double a, const std::vector<double>& b) {
        return attend_once(dtype, kernel, a, b);
      };
      // To -inf: weight 0; all of them: an empty row.
      EXPECT_EQ(row(0x1p100, {-0x1p100, 0.0, -0x1p100}).o, 2.0) << dtype << " " << kernel;
      EXPECT_EQ(row(0x1p100, {-0x1p100, 0.0, -0x1p100}).lse, 0.0) << dtype << " " << kernel;
      const OneRow empty = row(0x1p100, {-0x1p100, -0x1p100, -0x1p100});
      EXPECT_TRUE(is_positive_zero(empty.o)) << dtype << " " << kernel << " " << empty.o;
      EXPECT_EQ(empty.lse, -kInf) << dtype << " " << kernel;
      // To +inf: NaN, never swallowed.
      const OneRow nan = row(0x1p100, {0x1p100, 0.0, 1.0});
      EXPECT_TRUE(std::isnan(nan.o) && std::isnan(nan.lse)) << dtype << " " << kernel << nan.o;
    }
  }
}

TEST(Edges, HugeFiniteScores_B009_B010_B035) {
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    const ProblemCase c = case_of(format("{} b1 sq1 sk3 h1 d8 scale:1", dtype));
    for (const std::string& kernel : kernels_for(c.problem)) {
      for (const double a : {64.0, 512.0, 16384.0}) {
        const OneRow alone = attend_once(dtype, kernel, a, {-a});
        EXPECT_EQ(alone.o, 1.0) << dtype << " " << kernel << " " << a;
        EXPECT_NEAR(alone.lse, -a * a, 4e-6 * a * a) << dtype << " " << kernel;
        const OneRow equal = attend_once(dtype, kernel, a, {-a, -a, -a});
        EXPECT_NEAR(equal.o, 2.0, 2.0 * unit_roundoff(c.problem.dtype)) << dtype << " " << kernel;
        EXPECT_NEAR(equal.lse, -a * a + std::log(3.0), 4e-6 * a * a) << dtype << " " << kernel;
        EXPECT_EQ(attend_once(dtype, kernel, a, {a, -a, 0.0}).o, 1.0) << dtype << " " << kernel;
      }
    }
  }
  for (const char* dtype : {"fp32", "bf16"}) {
    const ProblemCase c = case_of(format("{} b1 sq1 sk1 h1 d64", dtype));
    for (const std::string& kernel : kernels_for(c.problem)) {
      Tensors t(c);
      ASSERT_TRUE(harness::fill_inputs(t).ok());
      for (const TensorId id : {TensorId::kQ, TensorId::kK, TensorId::kV}) {
        set_rows(t, id, 0, 0, 133120.0);
      }
      run_as_is(t, with_kernel(kernel));
      EXPECT_EQ(t.get(TensorId::kO, 0, 0, 0, 63), 133120.0) << dtype << " " << kernel;
    }
  }
}

TEST(Edges, ScaleZeroNegativeAndTiny_B043_I10) {
  Thinned thinned(5);
  for (const char* dtype : {"fp32", "fp16", "bf16", "fp64"}) {
    for (const char* scale : {"0", "-0.5", "-1e-8", "1e-30", "-0"}) {
      for (const char* shape : {"b1 sq40 sk70 h2 d32 causal", "b1 sq2 sk90 h2 d32 causal",
                                "b1 sq30 sk30 h1 d16 window:4,2 softcap:3"}) {
        for (const char* direction : {"", " backward"}) {
          if (thinned.skips()) continue;
          const ProblemCase c = case_of(format("{} {} scale:{}{}", dtype, shape, scale, direction));
          for (const std::string& kernel : kernels_for(c.problem)) expect_accurate(c, kernel);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// q = 0: every score is 0, so lse is the natural log of the number of visible keys, and tells the
// base, the layout and the order of lse.
TEST(Edges, LseIsNaturalLogOfTheSumInItsDocumentedPlace_E10_B004) {
  for (const char* dtype : {"fp32", "fp16", "bf16", "fp64"}) {
    for (const char* shape : {"b2 sq33 sk70 h3 d32 causal", "b1 sq2 sk1000 h4 hk1 d32",
                              "varlen:q=5,0,9:k=7,3,80 h2 d16 causal", "b1 sq1024 sk1024 h1 d32"}) {
      const ProblemCase c = case_of(format("{} {} data:zero", dtype, shape));
      const AttentionProblem& p = c.problem;
      for (const std::string& kernel : kernels_for(p)) {
        Tensors t(c);
        ASSERT_TRUE(harness::fill_inputs(t).ok());
        run_as_is(t, with_kernel(kernel));
        for (const QueryRow& r : query_rows(c)) {
          const Span keys = p.mask.keys_of(r.query, r.n);
          if (keys.begin >= keys.end) continue;
          const double want = std::log(static_cast<double>(keys.end - keys.begin));
          const int64_t at =
              p.varlen ? r.h * p.total_q + r.s : (r.b * p.num_heads + r.h) * p.seqlen_q + r.s;
          ASSERT_NEAR(t.lse()[at], want, 1e-6 * std::max(1.0, want)) << print(c) << " " << kernel;
        }
      }
    }
  }
}

// A forward call without lse gives the same o.
TEST(Edges, LseIsOptional) {
  for (const char* shape : {"fp32 b2 sq33 sk70 h3 d32 causal", "bf16 b1 sq1 sk700 h4 hk1 d64",
                            "fp16 varlen:q=5,0,9:k=7,3,80 h2 d16"}) {
    const ProblemCase c = case_of(shape);
    for (const std::string& kernel : kernels_for(c.problem)) {
      harness::RunOptions options = with_kernel(kernel);
      const Outputs with = run_filled(c, options);
      options.want_lse = false;
      Tensors t(c);
      ASSERT_TRUE(harness::fill_inputs(t).ok());
      ASSERT_TRUE(harness::run_case(t, options).ok());
      EXPECT_EQ(t.packed(TensorId::kO), with.o) << shape << " " << kernel;
    }
  }
}

}  // namespace
}  // namespace tilewise::suite
