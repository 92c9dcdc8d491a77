#include <cstdint>
#include <limits>

#include "tests/capi/bad_cases.h"

namespace tilewise::test {
namespace {

std::byte* at(Call& c, Operand operand, int64_t bytes = 0) {
  return static_cast<std::byte*>(c.block(operand)) + bytes;
}

void add_nulls(std::vector<BadCase>& cases, const Kind& kind,
               const std::vector<Operand>& all) {  // I1
  for (const Operand operand : all) {
    if (operand == Operand::kLse && kind.direction == TILEWISE_FORWARD) continue;  // optional
    const bool workspace = operand == Operand::kWorkspace;
    cases.push_back({kind.name() + "_null_" + name_of(operand),
                     kind,
                     [operand](Call& c) { c.set_pointer(operand, nullptr); },
                     workspace ? TILEWISE_WORKSPACE : TILEWISE_INVALID_ARGUMENT,
                     {name_of(operand), "null"}});
  }
}

void add_misaligned(std::vector<BadCase>& cases, const Kind& kind,
                    const std::vector<Operand>& all) {  // I4, I11
  for (const Operand operand : all) {
    if (operand == Operand::kWorkspace) continue;
    const int element = kind.dtype == TILEWISE_FP16 && operand <= Operand::kDv ? 2 : 4;
    for (int shift = 1; shift < element; ++shift) {
      cases.push_back(
          {kind.name() + "_misaligned_" + name_of(operand) + "_by_" + std::to_string(shift),
           kind,
           [operand, shift](Call& c) { c.set_pointer(operand, at(c, operand, shift)); },
           TILEWISE_INVALID_ARGUMENT,
           {name_of(operand), "aligned to " + std::to_string(element)}});
    }
  }
}

void add_workspace(std::vector<BadCase>& cases, const Kind& kind) {  // I11
  for (const int shift : {1, 2, 4, 8, 16, 32, 63}) {
    cases.push_back({kind.name() + "_misaligned_workspace_by_" + std::to_string(shift),
                     kind,
                     [shift](Call& c) {
                       c.set_pointer(Operand::kWorkspace, at(c, Operand::kWorkspace, shift));
                     },
                     TILEWISE_WORKSPACE,
                     {"workspace", "aligned to 64", "needs"}});
  }
  cases.push_back({kind.name() + "_workspace_short_by_1",
                   kind,
                   [](Call& c) { c.workspace_bytes() -= 1; },
                   TILEWISE_WORKSPACE,
                   {"workspace_bytes", "needs"}});
  cases.push_back({kind.name() + "_workspace_bytes_0",
                   kind,
                   [](Call& c) { c.workspace_bytes() = 0; },
                   TILEWISE_WORKSPACE,
                   {"workspace_bytes", "0", "needs"}});
}

void add_overlaps(std::vector<BadCase>& cases, const Kind& kind, const Call& call) {  // I12
  const std::vector<Operand> all = call.operands();
  for (const Operand out : all) {
    if (!call.is_output(out)) continue;
    for (const Operand other : all) {
      if (other == out || (call.is_output(other) && other < out)) continue;
      const std::string name = kind.name() + "_" + name_of(out) + "_overlaps_" + name_of(other);
      const std::vector<std::string> words = {name_of(out), name_of(other), "overlaps"};
      // The output begins where the other does, within it, or ends within it.
      if (other != Operand::kWorkspace && out != Operand::kWorkspace) {
        cases.push_back({name, kind, [=](Call& c) { c.set_pointer(out, at(c, other)); },
                         TILEWISE_INVALID_ARGUMENT, words});
        cases.push_back({name + "_at_its_end", kind,
                         [=](Call& c) {
                           const auto last = static_cast<int64_t>(c.block_bytes(other)) - 4;
                           c.set_pointer(out, at(c, other, last));
                         },
                         TILEWISE_INVALID_ARGUMENT, words});
      }
      cases.push_back({name + "_at_its_begin", kind,
                       [=](Call& c) {
                         const Operand moved = out == Operand::kWorkspace ? other : out;
                         const Operand fixed = out == Operand::kWorkspace ? out : other;
                         const auto size = static_cast<int64_t>(c.block_bytes(moved));
                         c.set_pointer(moved, at(c, fixed, 4 - size));
                       },
                       TILEWISE_INVALID_ARGUMENT, words});
    }
  }
}

// I8, B096
void add_lengths(std::vector<BadCase>& cases, const Kind& kind, Operand operand, int32_t length) {
  const std::string field = name_of(operand);
  const int32_t total = 2 * length;
  constexpr int32_t kHighest = std::numeric_limits<int32_t>::max();
  constexpr int32_t kLowest = std::numeric_limits<int32_t>::min();
  struct Bad {
    const char* name;
    int32_t entries[3];
    std::vector<std::string> words;
  };
  const std::string t = std::to_string(total);
  const Bad bad[] = {
      {"first_1", {1, length, total}, {field + "[0]", "1"}},
      {"first_negative", {-1, length, total}, {field + "[0]", "-1"}},
      {"first_lowest", {kLowest, length, total}, {field + "[0]", std::to_string(kLowest)}},
      {"decreasing", {0, length, length - 1}, {field + "[2]", std::to_string(length - 1)}},
      {"negative_entry", {0, -1, total}, {field + "[1]", "-1"}},
      {"lowest_entry", {0, kLowest, total}, {field + "[1]", std::to_string(kLowest)}},
      {"last_short", {0, length, total - 1}, {field + "[2]", std::to_string(total - 1), t}},
      {"last_zero", {0, 0, 0}, {field + "[2]", "0", t}},
      {"too_long_first", {0, length + 1, total}, {"length", "max_seqlen", std::to_string(length)}},
      {"too_long_second", {0, length - 1, total}, {"sequence 1", "max_seqlen"}},
      {"past_the_total", {0, length, total + 1}, {"max_seqlen"}},
      {"huge_entry", {0, kHighest, total}, {"length", std::to_string(kHighest)}},
      {"huge_last", {0, length, kHighest}, {"length"}},
  };
  for (const Bad& b : bad) {
    std::vector<std::string> words = b.words;
    words.push_back(field);
    cases.push_back({kind.name() + "_" + field + "_" + b.name, kind,
                     [operand, b](Call& c) {
                       for (int i = 0; i < 3; ++i) c.cu_seqlens(operand)[i] = b.entries[i];
                     },
                     TILEWISE_INVALID_ARGUMENT, words});
  }
}

// What the problem has no use for.
void add_unused(std::vector<BadCase>& cases, const Kind& kind) {
  const auto add = [&](const std::string& name, std::function<void(Call&)> edit,
                       std::vector<std::string> words) {
    cases.push_back({kind.name() + "_" + name, kind, std::move(edit), TILEWISE_INVALID_ARGUMENT,
                     std::move(words)});
  };
  const auto given = [](Operand operand) {
    return [operand](Call& c) { c.set_pointer(operand, c.block(operand)); };
  };
  if (kind.alibi) {
    add("alibi_batch_stride_negative", [](Call& c) { c.alibi_batch_stride() = -4; },
        {"alibi_batch_stride", "-4"});
  } else {
    add("unused_slopes", given(Operand::kSlopes), {"alibi_slopes"});
    add("unused_slopes_stride", [](Call& c) { c.alibi_batch_stride() = 4; },
        {"alibi_batch_stride", "4"});
  }
  if (!kind.varlen) {
    add("unused_cu_q", given(Operand::kCuQ), {"cu_seqlens_q", "varlen"});
    add("unused_cu_k", given(Operand::kCuK), {"cu_seqlens_k", "varlen"});
  }
  add("stream", [](Call& c) { c.stream() = reinterpret_cast<void*>(0x40); }, {"stream", "0x40"});
  static constexpr tilewise_thread_pool kEmpty = {nullptr, nullptr};
  add("empty_pool", [](Call& c) { c.pool() = &kEmpty; }, {"pool", "null"});
}

void add_struct_sizes(std::vector<BadCase>& cases, const Kind& kind, size_t whole) {
  for (const size_t value :
       {size_t{0}, size_t{1}, size_t{8}, whole / 2, whole - 8, whole - 1, size_t{4097}, SIZE_MAX}) {
    cases.push_back({kind.name() + "_params_struct_size_" + std::to_string(value),
                     kind,
                     [value](Call& c) { c.forward.struct_size = c.backward.struct_size = value; },
                     TILEWISE_INVALID_ARGUMENT,
                     {"params.struct_size", std::to_string(value)}});
  }
}

}  // namespace

std::vector<BadCase> bad_calls() {
  std::vector<BadCase> cases;
  std::vector<Kind> kinds = all_kinds();
  kinds.push_back({TILEWISE_FORWARD, false, false, TILEWISE_FP16});
  kinds.push_back({TILEWISE_BACKWARD, false, false, TILEWISE_FP16});
  for (const Kind& kind : kinds) {
    Call call(kind);
    if (call.create() != TILEWISE_OK) continue;  // GoodCallsAreGood says so
    add_nulls(cases, kind, call.operands());
    add_misaligned(cases, kind, call.operands());
    if (call.workspace_needed() > 0) add_workspace(cases, kind);
    add_overlaps(cases, kind, call);
    add_unused(cases, kind);
    if (kind.varlen) {
      add_lengths(cases, kind, Operand::kCuQ, 5);
      add_lengths(cases, kind, Operand::kCuK, 7);
    }
  }
  add_struct_sizes(cases, {TILEWISE_FORWARD}, sizeof(tilewise_forward_params));
  add_struct_sizes(cases, {TILEWISE_BACKWARD}, sizeof(tilewise_backward_params));
  return cases;
}

}  // namespace tilewise::test
