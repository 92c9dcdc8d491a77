// What the guards must notice, each tried.
#include <cstring>
#include <limits>
#include <string>

#include "harness/oracle.h"
#include "support.h"

namespace tilewise::harness {
namespace {

// Fills every output with zeros, as a good call would write something.
void write_outputs(Tensors& t, Direction direction) {
  for (int i = 0; i < kNumTensors; ++i) {
    const auto id = static_cast<TensorId>(i);
    if (t.pointer(id) == nullptr || !is_output(id, direction)) continue;
    const Extents e = t.problem().extents(id);
    const std::vector<double> row(static_cast<std::size_t>(e.dim));
    for (int64_t at = 0; at < e.batch * e.seqlen * e.heads; ++at) {
      t.set_row(id, at / e.heads / e.seqlen, at / e.heads % e.seqlen, at % e.heads, row.data());
    }
  }
}

// Between the rows of o: its first row is 4 elements long, the next begins after 6.
constexpr const char* kGaps = "fp16 b1 sq3 h2 d4 stride:o=64,12,6";

std::byte* bytes_of(Tensors& t, TensorId id) { return static_cast<std::byte*>(t.pointer(id)); }

std::string damage_of(Tensors& t) { return t.damage(t.problem().direction).value_or("none"); }

TEST(Buffers, AGoodCallLeavesNoDamage) {
  for (const char* line : {kGaps, "bf16 b2 sq3 sk2 h4 hk2 d3 dv5 layout:qkv backward",
                           "fp32 varlen:q=2,0:k=1,4 h2 d3 layout:qkv alibi backward",
                           "fp32 b0 sq3 h1 d4 backward", "fp32 b1 sq3 sk0 h1 d4 backward",
                           "fp32 b2 sq3 h1 d4 stride:do=0,0,0 offset:q=3 offset:dk=1 backward"}) {
    for (const Placement place :
         {Placement::kGuards, Placement::kEndAtPage, Placement::kStartAtPage}) {
      Tensors t(case_of(line), {.placement = place});
      ASSERT_TRUE(fill_inputs(t).ok());
      t.make_workspace(1000, 64);
      const Direction direction = t.problem().direction;
      t.poison_outputs(direction);
      t.seal_inputs(direction);
      EXPECT_EQ(t.written(direction).value_or("none"), "none") << line;
      write_outputs(t, direction);
      EXPECT_EQ(damage_of(t), "none") << line;
    }
  }
}

TEST(Buffers, NoticeWhatACallMayNotDo_F2) {
  struct Misdeed {
    const char* sign;
    void (*commit)(Tensors&);
  };
  const Misdeed misdeeds[] = {
      {"o: a guard", [](Tensors& t) { bytes_of(t, TensorId::kO)[-1] = {}; }},
      {"o: a guard", [](Tensors& t) { bytes_of(t, TensorId::kO)[-1023] = {}; }},
      {"o: a guard", [](Tensors& t) { bytes_of(t, TensorId::kO)[(2 * 12 + 6 + 4) * 2] = {}; }},
      {"o: bytes [8, 12)", [](Tensors& t) { bytes_of(t, TensorId::kO)[11] = {}; }},
      {"o at b 0 s 2 h 1 x 3 was not written",
       [](Tensors& t) { std::memset(bytes_of(t, TensorId::kO) + (2 * 12 + 6 + 3) * 2, 0xFF, 2); }},
      {"k: an input was changed", [](Tensors& t) { t.set(TensorId::kK, 0, 2, 1, 3, 123); }},
      {"v: a guard", [](Tensors& t) { bytes_of(t, TensorId::kV)[-5] = {}; }},
      {"lse: a guard", [](Tensors& t) { t.lse()[6] = 0; }},
      {"workspace: a guard", [](Tensors& t) { static_cast<char*>(t.workspace())[128] = 0; }},
  };
  for (const Misdeed& m : misdeeds) {
    Tensors t = filled(kGaps);
    t.make_workspace(128, 64);
    t.poison_outputs(Direction::kForward);
    t.seal_inputs(Direction::kForward);
    write_outputs(t, Direction::kForward);
    ASSERT_EQ(damage_of(t), "none");
    m.commit(t);
    EXPECT_EQ(damage_of(t).substr(0, std::strlen(m.sign)), m.sign);
  }
}

TEST(Buffers, NoticeAWriteByACallThatFailed) {
  Tensors t = filled("fp32 b1 sq2 h1 d2 backward");
  t.make_workspace(64, 64);
  t.poison_outputs(Direction::kBackward);
  EXPECT_FALSE(t.written(Direction::kBackward));
  t.set(TensorId::kDv, 0, 1, 0, 1, 0.0);
  EXPECT_EQ(*t.written(Direction::kBackward), "dv was written by a call that failed");
}

TEST(Buffers, PackedQkvIsOneBlock) {
  Tensors t = filled("fp32 b2 sq3 h4 hk2 d3 dv5 layout:qkv backward");
  for (const auto& [q, k, v] : {std::array{TensorId::kQ, TensorId::kK, TensorId::kV},
                                std::array{TensorId::kDq, TensorId::kDk, TensorId::kDv}}) {
    EXPECT_EQ(bytes_of(t, k) - bytes_of(t, q), 4 * 3 * 4);
    EXPECT_EQ(bytes_of(t, v) - bytes_of(t, k), 2 * 3 * 4);
  }
  Tensors apart = filled("fp32 b2 sq3 sk4 h4 hk2 d3 layout:qkv");
  EXPECT_NE(bytes_of(apart, TensorId::kK) - bytes_of(apart, TensorId::kQ), 4 * 3 * 4);
}

TEST(Buffers, OffsetsMisalign) {
  Tensors t = filled("fp16 b1 sq3 h1 d8 offset:k=3");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.pointer(TensorId::kQ)) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.pointer(TensorId::kK)) % 64, 6u);
}

TEST(BuffersDeathTest, PagesEndTheTensors_B049) {
  const ProblemCase c = case_of("fp16 b1 sq1 sk5 h1 d7");
  EXPECT_DEATH(
      {
        Tensors t(c, {.placement = Placement::kEndAtPage});
        const volatile std::byte past = bytes_of(t, TensorId::kK)[5 * 7 * 2];
        static_cast<void>(past);
      },
      "");
  EXPECT_DEATH(
      {
        Tensors t(c, {.placement = Placement::kStartAtPage});
        const volatile std::byte before = bytes_of(t, TensorId::kV)[-1];
        static_cast<void>(before);
      },
      "");
}

TEST(Buffers, LengthsAreCumulated) {
  Tensors t = filled("fp32 varlen:q=3,0,5:k=4,2,0 h1 d1");
  const int32_t q[] = {0, 3, 3, 8}, k[] = {0, 4, 6, 6};
  EXPECT_EQ(std::memcmp(t.cu_seqlens_q(), q, sizeof q), 0);
  EXPECT_EQ(std::memcmp(t.cu_seqlens_k(), k, sizeof k), 0);
}

}  // namespace
}  // namespace tilewise::harness
