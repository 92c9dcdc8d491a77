// F3: relations between two runs. Bit-equal where the arithmetic order is the same, else within
// twice what A2 and A3 allow one run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "harness/data.h"
#include "harness/oracle.h"
#include "support.h"

namespace tilewise::suite {
namespace {

// Copies rows [from, from + count) of every head between tensors of equal heads and dim.
void copy_rows(const Tensors& source, TensorId id, int64_t b_from, int64_t from, Tensors& target,
               int64_t b_to, int64_t to, int64_t count) {
  const Extents e = target.problem().extents(id);
  for (int64_t s = 0; s < count; ++s) {
    for (int64_t h = 0; h < e.heads; ++h) {
      for (int64_t x = 0; x < e.dim; ++x) {
        target.set(id, b_to, to + s, h, x, source.get(id, b_from, from + s, h, x));
      }
    }
  }
}

void copy_tensor(const Tensors& source, TensorId id, Tensors& target) {
  const Extents e = target.problem().extents(id);
  for (int64_t b = 0; b < e.batch; ++b) copy_rows(source, id, b, 0, target, b, 0, e.seqlen);
}

constexpr TensorId kForwardInputs[] = {TensorId::kQ, TensorId::kK, TensorId::kV};

void expect_near(const Tensors& a, const Tensors& b, const std::string& what) {
  const DType dtype = a.problem().dtype;
  // Both are rounded sums of the same terms; fp32 has 48 u for one (rule A2).
  const double u = unit_roundoff(dtype) * (dtype == DType::kFp32 || dtype == DType::kFp64 ? 48 : 1);
  EXPECT_LE(relative_l2(values_of(a.packed(TensorId::kO), dtype),
                        values_of(b.packed(TensorId::kO), dtype)),
            2.0 * u)
      << what;
  const std::vector<float> x = a.packed_lse(), y = b.packed_lse();
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_NEAR(x[i], y[i], 8e-6 * std::max(1.0f, std::fabs(y[i]))) << what;
  }
}

const char* const kTypes[] = {"fp32", "fp16", "bf16", "fp64"};

TEST(Metamorphic, PermutedKeysGiveTheSameRows_F3) {
  for (const char* dtype : kTypes) {
    for (const char* shape : {"b1 sq40 sk150 h2 d64", "b1 sq1 sk700 h4 hk2 d64"}) {
      const ProblemCase c = case_of(format("{} {}", dtype, shape));
      for (const std::string& kernel : kernels_for(c.problem)) {
        Tensors straight(c), permuted(c);
        ASSERT_TRUE(harness::fill_inputs(straight).ok());
        copy_tensor(straight, TensorId::kQ, permuted);
        for (int64_t j = 0; j < c.problem.seqlen_k; ++j) {
          const int64_t to = (j * 37 + 11) % c.problem.seqlen_k;  // 37 divides neither length
          copy_rows(straight, TensorId::kK, 0, j, permuted, 0, to, 1);
          copy_rows(straight, TensorId::kV, 0, j, permuted, 0, to, 1);
        }
        run_as_is(straight, with_kernel(kernel));
        run_as_is(permuted, with_kernel(kernel));
        expect_near(permuted, straight, print(c) + " " + kernel);
      }
    }
  }
}

// Attention over parts of the keys, joined by tilewise_merge.
TEST(Metamorphic, SplitKeysAndMerge_F3_E7_B002_B042_B044) {
  for (const char* dtype : {"fp32", "fp16", "bf16"}) {
    for (const int64_t parts : {1, 2, 3, 7}) {
      const int64_t sk = 301;
      const ProblemCase whole_case = case_of(format("{} b2 sq5 sk{} h4 hk2 d32", dtype, sk));
      Tensors whole(whole_case);
      ASSERT_TRUE(harness::fill_inputs(whole).ok());
      run_as_is(whole);
      std::vector<std::unique_ptr<Tensors>> pieces;
      std::vector<const void*> o_parts;
      std::vector<const float*> lse_parts;
      for (int64_t part = 0; part <= parts; ++part) {  // the last one is empty
        const int64_t first = sk * part / parts;
        const int64_t last = part == parts ? first : sk * (part + 1) / parts;
        pieces.push_back(std::make_unique<Tensors>(
            case_of(format("{} b2 sq5 sk{} h4 hk2 d32", dtype, last - first))));
        Tensors& piece = *pieces.back();
        ASSERT_TRUE(harness::fill_inputs(piece).ok());
        copy_tensor(whole, TensorId::kQ, piece);
        for (int64_t b = 0; b < 2; ++b) {
          copy_rows(whole, TensorId::kK, b, first, piece, b, 0, last - first);
          copy_rows(whole, TensorId::kV, b, first, piece, b, 0, last - first);
        }
        run_as_is(piece);
        o_parts.push_back(piece.pointer(TensorId::kO));
        lse_parts.push_back(piece.lse());
      }
      Tensors merged(whole_case);
      ASSERT_TRUE(harness::fill_inputs(merged).ok());
      tilewise_merge_params m = TILEWISE_MERGE_PARAMS_INIT;
      m.num_parts = parts + 1;
      m.o_parts = o_parts.data();
      m.lse_parts = lse_parts.data();
      m.o = merged.pointer(TensorId::kO);
      m.lse = merged.lse();
      m.part_dtype = m.dtype = static_cast<int32_t>(whole_case.problem.dtype);
      m.batch = 2;
      m.seqlen = 5;
      m.num_heads = 4;
      m.head_dim = 32;
      ASSERT_EQ(tilewise_merge(&m), TILEWISE_OK) << tilewise_last_error();
      expect_near(merged, whole, format("{} in {} parts", dtype, parts));
    }
  }
}

// Keys appended behind what any query sees change nothing, whatever they hold.
TEST(Metamorphic, MaskedPaddingIsBitEqual_F3_B014_B023_B028) {
  for (const char* dtype : kTypes) {
    const ProblemCase exact = case_of(format("{} b1 sq70 sk70 h2 d64 causal topleft", dtype));
    const ProblemCase padded = case_of(format("{} b1 sq70 sk128 h2 d64 causal topleft", dtype));
    for (const std::string& kernel : kernels_for(exact.problem)) {
      Tensors a(exact), b(padded);
      ASSERT_TRUE(harness::fill_inputs(a).ok());
      ASSERT_TRUE(harness::fill_inputs(b).ok());
      copy_tensor(a, TensorId::kQ, b);
      for (const TensorId id : {TensorId::kK, TensorId::kV}) {
        copy_rows(a, id, 0, 0, b, 0, 0, 70);
        for (int64_t at = 70 * 2 * 64; at < 128 * 2 * 64; ++at) {
          b.set(id, 0, at / 64 / 2, at / 64 % 2, at % 64, std::numeric_limits<double>::quiet_NaN());
        }
      }
      EXPECT_EQ(difference_of(run_as_is(b, with_kernel(kernel)), run_as_is(a, with_kernel(kernel))),
                "")
          << dtype << " " << kernel;
    }
  }
}

// One sequence alone, in a batch, and as one of a varlen batch.
TEST(Metamorphic, AloneInABatchAndVarlenAreBitEqual_F3_D3_B073) {
  for (const char* dtype : kTypes) {
    for (const char* rest : {"sq33 sk70 h4 hk2 d64 causal", "sq1 sk900 h8 hk2 d64",
                             "sq90 sk40 h1 d80 window:5,9 softcap:4 alibi"}) {
      for (const char* direction : {"", " backward"}) {
        const ProblemCase one = case_of(format("{} b1 {}{}", dtype, rest, direction));
        const ProblemCase many = case_of(format("{} b3 {}{}", dtype, rest, direction));
        const int64_t sq = one.problem.seqlen_q, sk = one.problem.seqlen_k;
        // The longest sequence decides between decode and prefill: it must not change that.
        const int64_t before = sq == 1 ? 3 : 7;
        std::string tail = rest;
        tail = tail.substr(tail.find(" h"));
        const ProblemCase packed = case_of(
            format("{} varlen:q={},{},0:k=50,{},3{}{}", dtype, before, sq, sk, tail, direction));
        for (const std::string& kernel : kernels_for(one.problem)) {
          Tensors batch(many);
          ASSERT_TRUE(harness::fill_inputs(batch).ok());
          const auto take = [&](Tensors& t, int64_t q_at, int64_t k_at) {
            copy_rows(batch, TensorId::kQ, 2, 0, t, 0, q_at, sq);
            copy_rows(batch, TensorId::kK, 2, 0, t, 0, k_at, sk);
            copy_rows(batch, TensorId::kV, 2, 0, t, 0, k_at, sk);
            if (one.problem.backward()) copy_rows(batch, TensorId::kDo, 2, 0, t, 0, q_at, sq);
            for (int64_t h = 0; one.problem.alibi && h < one.problem.num_heads; ++h) {
              float* slopes = t.alibi_slopes();
              const int64_t last = t.alibi_batch_stride() * (t.problem().batch - 1);
              for (int64_t at = 0; at <= last; at += std::max<int64_t>(1, t.alibi_batch_stride())) {
                slopes[at + h] = batch.alibi_slopes()[2 * batch.alibi_batch_stride() + h];
              }
            }
          };
          Tensors alone(one), varlen(packed);
          ASSERT_TRUE(harness::fill_inputs(alone).ok());
          ASSERT_TRUE(harness::fill_inputs(varlen).ok());
          take(alone, 0, 0);
          take(varlen, before, 50);
          run_as_is(batch, with_kernel(kernel));
          run_as_is(alone, with_kernel(kernel));
          run_as_is(varlen, with_kernel(kernel));
          const auto expect_rows_equal = [&](TensorId id, int64_t count, int64_t varlen_at) {
            const Extents e = one.problem.extents(id);
            for (int64_t at = 0; at < count * e.heads * e.dim; ++at) {
              const int64_t x = at % e.dim, h = at / e.dim % e.heads, s = at / e.dim / e.heads;
              const double want = alone.get(id, 0, s, h, x);
              ASSERT_EQ(batch.get(id, 2, s, h, x), want)
                  << print(many) << " " << kernel << " " << name_of(id);
              ASSERT_EQ(varlen.get(id, 0, varlen_at + s, h, x), want)
                  << print(packed) << " " << kernel << " " << name_of(id);
            }
          };
          expect_rows_equal(TensorId::kO, sq, before);
          if (one.problem.backward()) {
            expect_rows_equal(TensorId::kDq, sq, before);
            expect_rows_equal(TensorId::kDk, sk, 50);
            expect_rows_equal(TensorId::kDv, sk, 50);
          }
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// Grouped heads against the same keys repeated for every query head.
TEST(Metamorphic, RepeatedHeadsEqualGroupedHeads_F3) {
  for (const char* dtype : kTypes) {
    for (const char* lengths : {"sq37 sk90", "sq1 sk300", "sq3 sk70"}) {
      const ProblemCase grouped = case_of(format("{} b1 {} h6 hk2 d32 causal", dtype, lengths));
      const ProblemCase repeated = case_of(format("{} b1 {} h6 d32 causal", dtype, lengths));
      for (const std::string& kernel : kernels_for(grouped.problem)) {
        Tensors a(grouped), b(repeated);
        ASSERT_TRUE(harness::fill_inputs(a).ok());
        ASSERT_TRUE(harness::fill_inputs(b).ok());
        copy_tensor(a, TensorId::kQ, b);
        const int64_t sk = grouped.problem.seqlen_k;
        for (const TensorId id : {TensorId::kK, TensorId::kV}) {
          for (int64_t at = 0; at < sk * 6 * 32; ++at) {
            const int64_t x = at % 32, h = at / 32 % 6, s = at / 32 / 6;
            b.set(id, 0, s, h, x, a.get(id, 0, s, h / 3, x));
          }
        }
        run_as_is(a, with_kernel(kernel));
        run_as_is(b, with_kernel(kernel));
        if (kind_of(kernel) == "decode") {
          expect_near(a, b, print(grouped) + " " + kernel);
        } else {
          EXPECT_EQ(a.packed(TensorId::kO), b.packed(TensorId::kO)) << print(grouped) << kernel;
          EXPECT_EQ(a.packed_lse(), b.packed_lse()) << print(grouped) << kernel;
        }
      }
    }
  }
}

// q and k get a channel with a product of 3 for every pair: o stays, lse moves by 3 * scale.
TEST(Metamorphic, AConstantAddedToAllScoresMovesOnlyTheLse_F3) {
  for (const char* dtype : {"fp32", "fp64"}) {
    for (const char* shape :
         {"b1 sq40 sk150 h2 d64 scale:0.125", "b1 sq1 sk700 h2 d64 scale:0.125"}) {
      const ProblemCase c = case_of(format("{} {}", dtype, shape));
      for (const std::string& kernel : kernels_for(c.problem)) {
        Tensors plain(c), shifted(c);
        for (Tensors* t : {&plain, &shifted}) {
          ASSERT_TRUE(harness::fill_inputs(*t).ok());
          for (const TensorId id : {TensorId::kQ, TensorId::kK}) {
            const Extents e = c.problem.extents(id);
            for (int64_t at = 0; at < e.seqlen * e.heads; ++at) {
              const double value = t == &plain ? 0.0 : id == TensorId::kQ ? 24.0 : 1.0;
              t->set(id, 0, at / e.heads, at % e.heads, 63, value);
            }
          }
          run_as_is(*t, with_kernel(kernel));
        }
        EXPECT_LE(relative_l2(values_of(shifted.packed(TensorId::kO), c.problem.dtype),
                              values_of(plain.packed(TensorId::kO), c.problem.dtype)),
                  6e-6)
            << print(c) << " " << kernel;
        const std::vector<float> before = plain.packed_lse(), after = shifted.packed_lse();
        for (size_t i = 0; i < before.size(); ++i) {
          ASSERT_NEAR(after[i] - before[i], 3.0, 4e-5) << print(c) << " " << kernel;
        }
      }
    }
  }
}

// dO as a permuted view, with stride 0, or in another layout than O: the gradients of its copy.
TEST(Metamorphic, LayoutsOfDoDoNotMatter_F3_B001_B107) {
  for (const char* dtype : kTypes) {
    const ProblemCase plain = case_of(format("{} b2 sq32 sk32 h4 hk1 d64 backward", dtype));
    ProblemCase permuted = plain;
    permuted.problem.stride(TensorId::kDo) =
        default_strides(plain.problem, TensorId::kDo, Layout::kBhsd);
    for (const std::string& kernel : kernels_for(plain.problem)) {
      const Outputs want = run_filled(plain, with_kernel(kernel));
      EXPECT_EQ(difference_of(run_filled(permuted, with_kernel(kernel)), want), "")
          << dtype << " " << kernel;
      // One row of dO for all heads, positions and batches.
      ProblemCase broadcast = plain;
      broadcast.problem.stride(TensorId::kDo) = {0, 0, 0};
      Tensors narrow(broadcast), wide(plain);
      ASSERT_TRUE(harness::fill_inputs(narrow).ok());
      ASSERT_TRUE(harness::fill_inputs(wide).ok());
      for (const TensorId id : kForwardInputs) copy_tensor(narrow, id, wide);
      copy_tensor(narrow, TensorId::kDo, wide);
      EXPECT_EQ(difference_of(run_as_is(narrow, with_kernel(kernel)),
                              run_as_is(wide, with_kernel(kernel))),
                "")
          << dtype << " " << kernel;
    }
  }
}

// Any mixture of layouts, packed slices and padded strides gives the bits of contiguous tensors.
TEST(Metamorphic, MixedLayoutsGiveTheSameBits_F3_B007_B020_B059) {
  for (const char* dtype : kTypes) {
    for (const char* direction : {"", " backward"}) {
      const ProblemCase plain =
          case_of(format("{} b2 sq19 sk83 h4 hk2 d24 dv40 causal{}", dtype, direction));
      for (const std::string& kernel : kernels_for(plain.problem)) {
        const Outputs want = run_filled(plain, with_kernel(kernel));
        for (uint64_t trial = 0; trial < 6; ++trial) {
          Draw draw(trial);
          ProblemCase mixed = plain;
          for (int t = 0; t < kNumTensors; ++t) {
            const TensorId id = static_cast<TensorId>(t);
            mixed.problem.strides[t] =
                default_strides(plain.problem, id, static_cast<Layout>(draw.below(3)));
            if (draw.below(2) == 0) {
              const Extents e = plain.problem.extents(id);
              const int64_t head = e.dim + draw.below(20);
              const int64_t seqlen = head * e.heads + draw.below(20);
              mixed.problem.strides[t] = {seqlen * e.seqlen + draw.below(50), seqlen, head};
            }
            mixed.offsets[t] = draw.below(17);
          }
          ASSERT_EQ(difference_of(run_filled(mixed, with_kernel(kernel)), want), "")
              << print(mixed) << " " << kernel;
        }
      }
    }
  }
}

// ALiBi slopes belong to the caller: heads run apart with their own slopes give the bits of all
// heads at once.
TEST(Metamorphic, HeadsApartWithTheirSlopes_F3_B137) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const ProblemCase all = case_of(format("{} b1 sq40 sk40 h8 d32 causal alibi", dtype));
    const ProblemCase half = case_of(format("{} b1 sq40 sk40 h4 d32 causal alibi", dtype));
    for (const std::string& kernel : kernels_for(all.problem)) {
      Tensors t(all);
      ASSERT_TRUE(harness::fill_inputs(t).ok());
      run_as_is(t, with_kernel(kernel));
      for (const int64_t first : {0, 4}) {
        Tensors part(half);
        ASSERT_TRUE(harness::fill_inputs(part).ok());
        for (const TensorId id : kForwardInputs) {
          for (int64_t at = 0; at < 40 * 4 * 32; ++at) {
            const int64_t x = at % 32, h = at / 32 % 4, s = at / 32 / 4;
            part.set(id, 0, s, h, x, t.get(id, 0, s, first + h, x));
          }
        }
        for (int64_t h = 0; h < 4; ++h) part.alibi_slopes()[h] = t.alibi_slopes()[first + h];
        run_as_is(part, with_kernel(kernel));
        for (int64_t at = 0; at < 40 * 4 * 32; ++at) {
          const int64_t x = at % 32, h = at / 32 % 4, s = at / 32 / 4;
          ASSERT_EQ(part.get(TensorId::kO, 0, s, h, x), t.get(TensorId::kO, 0, s, first + h, x))
              << dtype << " " << kernel << " head " << first + h;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::suite
