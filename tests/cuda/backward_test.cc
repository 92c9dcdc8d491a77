// The CUDA backward against the fp64 oracle, by the same rules as the CPU's. Skipped without a
// device.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/format.h"
#include "core/numeric.h"
#include "harness/buffers.h"
#include "harness/data.h"
#include "harness/run.h"
#include "tests/cuda/check_on_device.h"

namespace tilewise {
namespace {

class CudaBackward : public EachTypeOnDevice {};

// Every head-dim tile, its middle and its first dimension that needs it; odd lengths.
TEST_P(CudaBackward, HeadDims_A4_A5_A6) {
  for (const int d : {1, 8, 33, 64, 65, 80, 96, 97, 128, 160, 192, 193, 256}) {
    for (const char* mask : {"", " causal"}) {
      check_on_device(
          format("{} b2 sq129 sk200 h2 d{}{} backward seed:{}", GetParam(), d, mask, d));
    }
  }
  check_on_device(format("{} b1 sq70 sk300 h2 d192 dv128 causal backward", GetParam()));
  check_on_device(format("{} b1 sq70 sk300 h2 d64 dv40 backward", GetParam()));
}

TEST_P(CudaBackward, Masks_E1_E8) {
  for (const char* mask : {"causal", "causal topleft", "window:5,3", "window:0,0",
                           "window:-1,7 topleft", "window:100,-1", "window:64,64"}) {
    for (const char* shape : {"sq1 sk1", "sq5 sk3", "sq130 sk129", "sq129 sk700", "sq300 sk40",
                              "sq257 sk257", "sq3 sk1000"}) {
      check_on_device(format("{} b1 {} h2 hk1 d64 {} backward", GetParam(), shape, mask));
      check_on_device(format("{} b1 {} h1 d256 {} backward", GetParam(), shape, mask));
    }
  }
}

TEST_P(CudaBackward, ScoresLayoutsGroups) {
  for (const char* rest :
       {"sq200 sk200 h4 d64 softcap:20 causal", "sq200 sk333 h4 hk2 d128 alibi",
        "sq200 sk333 h2 d192 softcap:5 alibi causal", "sq77 h2 d64 scale:-0.3",
        "sq77 h2 d64 scale:0 causal", "sq77 sk90 h4 d64 layout:bhsd", "sq77 h4 hk4 d64 layout:qkv",
        "sq200 h2 d96 offset:q=3 offset:dq=1", "sq64 sk900 h8 hk1 d128", "sq1 sk2000 h8 hk2 d128",
        "sq2 sk700 h16 hk2 d64 causal alibi", "sq0 sk70 h2 d64", "sq70 sk0 h2 d64"}) {
    check_on_device(format("{} b2 {} backward", GetParam(), rest));
  }
  check_on_device(
      format("{} varlen:q=3,70,0,200:k=90,70,5,333 h4 hk2 d64 causal backward", GetParam()));
  check_on_device(format("{} varlen:q=1,1,1:k=900,70,5000 h4 hk2 d128 backward", GetParam()));
  check_on_device(format("{} varlen:q=64,65,63,0,128:k=64,1,63,9,127 h2 d96 backward", GetParam()));
}

TEST_P(CudaBackward, DataFamilies_A4_A6) {
  for (const char* data : {"normal", "uniform", "large", "needle", "equal", "zero", "low", "high",
                           "huge", "structured", "subnormal", "largest"}) {
    for (const char* shape : {"sq130 sk300 h2 d64", "sq300 h2 d128 causal"}) {
      check_on_device(format("{} b1 {} data:{} backward seed:7", GetParam(), shape, data));
    }
  }
}

TEST_P(CudaBackward, Deterministic_D1) {
  for (const char* rest : {"b2 sq300 h4 hk2 d64 causal", "b1 sq700 h4 d128",
                           "b1 sq333 h2 d256 causal", "b1 sq500 h2 d64 window:70,10"}) {
    check_on_device(format("{} {} backward deterministic", GetParam(), rest));
  }
}

// The gradients of a case, bit for bit, after edit(tensors) of its inputs.
template <class Edit>
std::vector<std::vector<std::byte>> gradients(const ProblemCase& c, const Edit& edit,
                                              int runs = 1) {
  harness::Tensors tensors(c);
  EXPECT_TRUE(harness::fill_inputs(tensors).ok());
  edit(tensors);
  harness::RunOptions options;
  options.cuda_device = 0;
  std::vector<std::vector<std::byte>> bits;
  for (int i = 0; i < runs; ++i) {
    const harness::RunOutcome outcome =
        i == 0 ? harness::run_case(tensors, options)
               : harness::run_direction(tensors, Direction::kBackward, options);
    EXPECT_TRUE(outcome.ok() && !outcome.damage) << outcome.error << outcome.damage.value_or("");
    for (const TensorId t : {TensorId::kDk, TensorId::kDv, TensorId::kDq}) {
      bits.push_back(tensors.packed(t));
    }
  }
  return bits;
}

// The same as values.
std::vector<std::vector<double>> values_of(const ProblemCase& c,
                                           const std::vector<std::vector<std::byte>>& bits) {
  std::vector<std::vector<double>> all;
  for (const auto& bytes : bits) {
    std::vector<double>& values = all.emplace_back();
    for (size_t i = 0; i < bytes.size(); i += 2) {
      uint16_t x = 0;
      std::memcpy(&x, bytes.data() + i, 2);
      values.push_back(c.problem.dtype == DType::kBf16 ? float_of_bf16(x) : float_of_fp16(x));
    }
  }
  return all;
}

// dk and dv always, dq with `deterministic`: the same bits on every run.
TEST_P(CudaBackward, SameBitsOnReruns_D1) {
  for (const char* flag : {"", " deterministic"}) {
    for (const char* shape : {"b2 sq700 sk900 h4 hk2 d64 causal", "b1 sq640 h3 d128"}) {
      const Result<ProblemCase> c = parse_case(format("{} {} backward{}", GetParam(), shape, flag));
      ASSERT_TRUE(c.ok()) << c.status().message();
      const auto bits = gradients(
          *c, [](harness::Tensors&) {}, 50);
      for (size_t i = 3; i < bits.size(); ++i) {
        if (i % 3 == 2 && *flag == 0) continue;  // dq
        ASSERT_EQ(bits[i], bits[i % 3])
            << shape << flag << " gradient " << i % 3 << " of run " << i / 3;
      }
    }
  }
}

// Keys that no query sees and queries that see no key may hold anything; their gradients are 0.
TEST_P(CudaBackward, HiddenElementsDoNotShow_E3_E4) {
  for (const char* shape : {"b1 sq100 sk300 h2 d64 causal topleft deterministic",
                            "b1 sq300 sk100 h2 hk1 d64 causal deterministic",
                            "b2 sq300 sk100 h2 hk1 d128 causal deterministic",
                            "b1 sq90 sk200 h2 d256 window:3,5 topleft deterministic",
                            "b1 sq90 sk200 h2 d96 window:3,5 topleft softcap:9 deterministic"}) {
    const Result<ProblemCase> c = parse_case(format("{} {} backward", GetParam(), shape));
    ASSERT_TRUE(c.ok()) << c.status().message();
    const AttentionProblem& p = c->problem;
    const Lengths n = {p.seqlen_q, p.seqlen_k};
    const auto hide = [&](double value) {
      return [&, value](harness::Tensors& t) {
        const std::vector<double> row(static_cast<size_t>(p.head_dim), value);
        for (int64_t b = 0; b < p.batch; ++b) {
          for (int64_t s = 0; s < p.seqlen_q; ++s) {
            const Span keys = p.mask.keys_of(s, n);
            for (int64_t h = 0; h < p.num_heads && keys.begin >= keys.end; ++h) {
              t.set_row(TensorId::kQ, b, s, h, row.data());
              t.set_row(TensorId::kDo, b, s, h, row.data());
            }
          }
          for (int64_t s = 0; s < p.seqlen_k; ++s) {
            const Span queries = p.mask.queries_of(s, n);
            for (int64_t h = 0; h < p.num_heads_kv && queries.begin >= queries.end; ++h) {
              t.set_row(TensorId::kK, b, s, h, row.data());
              t.set_row(TensorId::kV, b, s, h, row.data());
            }
          }
        }
      };
    };
    const auto zeros = gradients(*c, hide(0.0));
    for (const double junk : {double{NAN}, double{INFINITY}, -double{INFINITY}, 1e4}) {
      EXPECT_EQ(gradients(*c, hide(junk)), zeros) << shape << ": hidden elements are " << junk;
    }
  }
}

// An element of q, k or do that is not finite concerns the rows and keys that have to do with it;
// the others have the bits that they have when it is 0. In dv it shows in its own column only.
TEST_P(CudaBackward, NonFiniteElementsConcernWhoSeesThem_E3_E4) {
  for (const char* shape :
       {"b1 sq65 sk128 h1 d64", "b1 sq128 sk128 h1 d64 causal", "b1 sq128 h1 d64 causal softcap:30",
        "b1 sq200 sk150 h2 hk1 d128 window:30,9", "b1 sq90 sk130 h1 d256 causal",
        "b1 sq70 h1 d96 causal alibi", "b1 sq300 h1 d128 causal softcap:20"}) {
    const Result<ProblemCase> c =
        parse_case(format("{} {} backward deterministic", GetParam(), shape));
    ASSERT_TRUE(c.ok()) << c.status().message();
    const AttentionProblem& p = c->problem;
    const Lengths n = {p.seqlen_q, p.seqlen_k};
    for (const TensorId id : {TensorId::kQ, TensorId::kK, TensorId::kDo}) {
      for (const int64_t at : {int64_t{0}, int64_t{40}, p.extents(id).seqlen - 1}) {
        for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}}) {
          SCOPED_TRACE(format("{} {} row {} is {}", shape, name_of(id), at, bad));
          constexpr int64_t kColumn = 5;
          const auto set = [&](double x) {
            return [&, x](harness::Tensors& t) { t.set(id, 0, at, 0, kColumn, x); };
          };
          const auto got = values_of(*c, gradients(*c, set(bad)));
          const auto zero = values_of(*c, gradients(*c, set(0.0)));
          const auto sees_a_key = [&](int64_t i) {
            const Span keys = p.mask.keys_of(i, n);
            return keys.begin < keys.end;
          };
          // Rows that see the key, or the row; keys that one of them sees.
          const auto row_concerned = [&](int64_t i, int64_t h) {
            return id == TensorId::kK ? p.mask.visible(i, at, n)
                                      : i == at && h == 0 && sees_a_key(i);
          };
          const auto key_concerned = [&](int64_t j) {
            for (int64_t i = 0; i < p.seqlen_q; ++i) {
              if (p.mask.visible(i, j, n) && row_concerned(i, 0)) return true;
            }
            return false;
          };
          for (const TensorId g : {TensorId::kDk, TensorId::kDv, TensorId::kDq}) {
            const Extents e = p.extents(g);
            const auto index = static_cast<size_t>(g == TensorId::kDk   ? 0
                                                   : g == TensorId::kDv ? 1
                                                                        : 2);
            for (size_t i = 0; i < got[index].size(); ++i) {
              const auto x = static_cast<int64_t>(i) % e.dim,
                         h = static_cast<int64_t>(i) / e.dim % e.heads,
                         s = static_cast<int64_t>(i) / e.dim / e.heads;
              bool concerned = g == TensorId::kDq ? row_concerned(s, h) : key_concerned(s);
              if (g == TensorId::kDv && id == TensorId::kDo) concerned = concerned && x == kColumn;
              if (!concerned) {
                ASSERT_EQ(got[index][i], zero[index][i])
                    << name_of(g) << " " << s << " " << h << " " << x;
              } else if (id == TensorId::kDo) {
                ASSERT_FALSE(std::isfinite(got[index][i]))
                    << name_of(g) << " " << s << " " << h << " " << x;
              }
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaBackward, testing::Values("bf16", "fp16"));

}  // namespace
}  // namespace tilewise
