// tilewise_merge through the C ABI: what may be passed and what may not. What it computes is tested
// beside the kernel.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "tilewise/tilewise.h"

namespace {

constexpr int64_t kParts = 3, kBatch = 2, kSeqlen = 3, kHeads = 2, kDim = 4;
constexpr int64_t kRows = kBatch * kSeqlen * kHeads;

// A merge that is right in every way.
struct Merge {
  float parts[kParts][kRows * kDim];
  float part_lse[kParts][kRows];
  float o[kRows * kDim];
  float lse[kRows];
  const void* o_parts[kParts];
  const float* lse_parts[kParts];
  tilewise_merge_params params = TILEWISE_MERGE_PARAMS_INIT;

  Merge() {
    for (int64_t i = 0; i < kParts; ++i) {
      for (float& x : parts[i]) x = static_cast<float>(i);
      for (float& x : part_lse[i]) x = 0.5f;
      o_parts[i] = parts[i];
      lse_parts[i] = part_lse[i];
    }
    for (float& x : o) x = -77;
    for (float& x : lse) x = -77;
    params.num_parts = kParts;
    params.o_parts = o_parts;
    params.lse_parts = lse_parts;
    params.o = o;
    params.lse = lse;
    params.batch = kBatch;
    params.seqlen = kSeqlen;
    params.num_heads = kHeads;
    params.head_dim = kDim;
  }
  Merge(const Merge&) = delete;
};

struct BadMerge {
  std::string name;
  std::function<void(Merge&)> edit;
  std::vector<std::string> words;
  tilewise_status status = TILEWISE_INVALID_ARGUMENT;
};

void add_pointers(std::vector<BadMerge>& cases) {
  cases.push_back({"null_o", [](Merge& m) { m.params.o = nullptr; }, {"o is null"}});
  cases.push_back({"null_o_parts", [](Merge& m) { m.params.o_parts = nullptr; }, {"o_parts"}});
  cases.push_back(
      {"null_lse_parts", [](Merge& m) { m.params.lse_parts = nullptr; }, {"lse_parts"}});
  for (int i = 0; i < kParts; ++i) {
    const std::string index = std::string("[").append(std::to_string(i)).append("]");
    cases.push_back({"null_part" + index,
                     [i](Merge& m) { m.o_parts[i] = nullptr; },
                     {"o_parts" + index, "null"}});
    cases.push_back({"null_part_lse" + index,
                     [i](Merge& m) { m.lse_parts[i] = nullptr; },
                     {"lse_parts" + index, "null"}});
    cases.push_back({"odd_part" + index,
                     [i](Merge& m) { m.o_parts[i] = reinterpret_cast<char*>(m.parts[i]) + 2; },
                     {"o_parts" + index, "aligned"}});
    cases.push_back({"o_overlaps" + index,
                     [i](Merge& m) { m.params.o = m.parts[i]; },
                     {"o overlaps", "o_parts" + index}});
    cases.push_back({"lse_overlaps" + index,
                     [i](Merge& m) { m.params.lse = m.part_lse[i]; },
                     {"lse overlaps", "lse_parts" + index}});
  }
  cases.push_back({"o_overlaps_end_of_part",
                   [](Merge& m) { m.params.o = m.parts[0] + kRows * kDim - 1; },
                   {"o overlaps", "o_parts[0]"}});
  cases.push_back({"o_overlaps_lse", [](Merge& m) { m.params.lse = m.o + 5; }, {"o overlaps lse"}});
  cases.push_back({"odd_o",
                   [](Merge& m) { m.params.o = reinterpret_cast<char*>(m.o) + 1; },
                   {"o must be aligned"}});
}

void add_numbers(std::vector<BadMerge>& cases) {
  struct Field {
    const char* name;
    int64_t tilewise_merge_params::*field;
    bool zero_is_bad;
  };
  for (const Field& f : {Field{"num_parts", &tilewise_merge_params::num_parts, false},
                         Field{"batch", &tilewise_merge_params::batch, false},
                         Field{"seqlen", &tilewise_merge_params::seqlen, false},
                         Field{"num_heads", &tilewise_merge_params::num_heads, true},
                         Field{"head_dim", &tilewise_merge_params::head_dim, true}}) {
    for (const int64_t value : {int64_t{-1}, std::numeric_limits<int64_t>::min(), int64_t{0}}) {
      if (value == 0 && !f.zero_is_bad) continue;
      cases.push_back({std::string(f.name) + std::to_string(value),
                       [f, value](Merge& m) { m.params.*f.field = value; },
                       {f.name, std::to_string(value)}});
    }
  }
  for (const int32_t value : {-1, 4, 1 << 20}) {
    cases.push_back({"dtype" + std::to_string(value),
                     [value](Merge& m) { m.params.dtype = value; },
                     {"dtype", std::to_string(value)}});
    cases.push_back({"part_dtype" + std::to_string(value),
                     [value](Merge& m) { m.params.part_dtype = value; },
                     {"part_dtype", std::to_string(value)}});
  }
  for (const size_t value : {size_t{0}, size_t{8}, sizeof(tilewise_merge_params) - 1, SIZE_MAX}) {
    cases.push_back({"struct_size" + std::to_string(value),
                     [value](Merge& m) { m.params.struct_size = value; },
                     {"struct_size", std::to_string(value)}});
  }
}

void add_strides(std::vector<BadMerge>& cases) {
  const tilewise_strides good = {kSeqlen * kHeads * kDim, kHeads * kDim, kDim, 1};
  const auto add = [&](const std::string& name, tilewise_strides strides, bool output,
                       std::vector<std::string> words) {
    const std::string field = output ? "o_strides" : "part_strides";
    words.push_back(field);
    cases.push_back(
        {field + name,
         [=](Merge& m) { (output ? m.params.o_strides : m.params.part_strides) = strides; },
         std::move(words)});
  };
  for (const bool output : {false, true}) {
    for (const int64_t dim : {0, 2, -1}) {
      add("_dim" + std::to_string(dim), {good.batch, good.seqlen, good.head, dim}, output,
          {"dim stride", std::to_string(dim)});
    }
    add("_batch", {-1, good.seqlen, good.head, 1}, output, {"batch", "-1"});
    add("_seqlen", {good.batch, -3, good.head, 1}, output, {"seqlen", "-3"});
    add("_head", {good.batch, good.seqlen, -9, 1}, output, {"head", "-9"});
  }
  add("_overlapping_heads", {good.batch, good.seqlen, kDim - 1, 1}, true, {"head", "3"});
  add("_broadcast_batch", {0, good.seqlen, good.head, 1}, true, {"batch", "0"});
}

std::vector<BadMerge> bad_merges() {
  std::vector<BadMerge> cases;
  add_pointers(cases);
  add_numbers(cases);
  add_strides(cases);
  return cases;
}

TEST(Merge, BadInputIsRefusedAndNothingWritten) {
  for (const BadMerge& bad : bad_merges()) {
    SCOPED_TRACE(bad.name);
    Merge m;
    bad.edit(m);
    char before[sizeof m.parts + sizeof m.part_lse + sizeof m.o + sizeof m.lse];
    std::memcpy(before, m.parts, sizeof before);
    EXPECT_EQ(tilewise_merge(&m.params), bad.status);
    EXPECT_EQ(std::memcmp(before, m.parts, sizeof before), 0);
    const std::string message = tilewise_last_error();
    for (const std::string& word : bad.words) {
      EXPECT_NE(message.find(word), std::string::npos) << word << " is not in: " << message;
    }
    Merge good;
    EXPECT_EQ(tilewise_merge(&good.params), TILEWISE_OK) << tilewise_last_error();
    EXPECT_FLOAT_EQ(good.o[0], 1.0f);
    EXPECT_FLOAT_EQ(good.lse[0], 0.5f + std::log(3.0f));
  }
  EXPECT_EQ(tilewise_merge(nullptr), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "params is null");
}

TEST(Merge, StridesMayDiffer) {
  Merge m;
  float transposed[kRows * kDim];
  m.params.o_strides = {kSeqlen * kHeads * kDim, kDim, kSeqlen * kDim, 1};
  m.params.o = transposed;
  m.params.lse = nullptr;
  for (int64_t i = 0; i < kRows * kDim; ++i) m.parts[0][i] = static_cast<float>(i);
  m.params.num_parts = 1;
  ASSERT_EQ(tilewise_merge(&m.params), TILEWISE_OK) << tilewise_last_error();
  for (int64_t s = 0; s < kSeqlen; ++s) {
    for (int64_t h = 0; h < kHeads; ++h) {
      EXPECT_EQ(transposed[(h * kSeqlen + s) * kDim], m.parts[0][(s * kHeads + h) * kDim]);
    }
  }
}

}  // namespace
