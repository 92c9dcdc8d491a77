#include "cli/kernel_table.h"

#include <functional>
#include <vector>

#include "core/problem.h"
#include "core/registry.h"
#include "cpu/entries.h"

namespace tilewise::cli {
namespace {

// A device that has everything, so that a kernel answers for the problem alone.
Device full_device() {
  Device device;
  device.isa = CpuIsa::kAvx512Bf16;
  device.num_cores = 1;
  return device;
}

bool computes(const KernelEntry& entry, AttentionProblem p) {
  set_layout(p, Layout::kBshd);
  return validate(p).ok() && entry.supports(p, full_device()).yes;
}

AttentionProblem plain_problem(DType dtype, Direction direction, int64_t seqlen_q, int64_t group) {
  AttentionProblem p;
  p.dtype = dtype;
  p.direction = direction;
  p.batch = 1;
  p.seqlen_q = seqlen_q;
  p.seqlen_k = 512;
  p.num_heads_kv = 2;
  p.num_heads = group * p.num_heads_kv;
  p.head_dim = p.head_dim_v = 64;
  return p;
}

constexpr DType kDTypes[] = {DType::kFp16, DType::kBf16, DType::kFp32, DType::kFp64};
constexpr int64_t kMostDim = 512, kManyQueries = 256;
constexpr int64_t kLargeGroup = 8;  // for kernels that ask for one

struct Found {
  std::string dtypes;
  std::vector<AttentionProblem> problems;  // one for each dtype it computes
  bool forward = false, backward = false;
};

void add_word(std::string& list, const std::string& word) {
  list += (list.empty() ? "" : ", ") + word;
}

Found find_types(const KernelEntry& entry) {
  Found found;
  for (const DType dtype : kDTypes) {
    bool any = false;
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      const AttentionProblem candidates[] = {plain_problem(dtype, direction, kManyQueries, 1),
                                             plain_problem(dtype, direction, 1, 1),
                                             plain_problem(dtype, direction, 1, kLargeGroup)};
      for (const AttentionProblem& p : candidates) {
        if (!computes(entry, p)) continue;
        (direction == Direction::kForward ? found.forward : found.backward) = true;
        if (!any) found.problems.push_back(p);
        any = true;
        break;
      }
    }
    if (any) add_word(found.dtypes, name_of(dtype));
  }
  return found;
}

std::string dims_text(const KernelEntry& entry, AttentionProblem p) {
  int64_t lowest = 0, highest = 0, count = 0;
  for (int64_t dim = 1; dim <= kMostDim; ++dim) {
    p.head_dim = p.head_dim_v = dim;
    if (!computes(entry, p)) continue;
    if (count++ == 0) lowest = dim;
    highest = dim;
  }
  const bool all = count == highest - lowest + 1;
  return format("{} to {}{}", lowest, highest, all ? "" : ", not all");
}

// 1: a kernel for few query rows says up to how many.
std::string queries_text(const KernelEntry& entry, AttentionProblem p) {
  p.seqlen_q = kManyQueries;
  if (computes(entry, p)) return "any";
  int64_t most = 0;
  for (int64_t n = 1; n < kManyQueries; ++n) {
    p.seqlen_q = n;
    if (computes(entry, p)) most = n * p.group();
  }
  return format("up to {}", most);
}

std::string missing_text(const KernelEntry& entry, const AttentionProblem& base) {
  struct Feature {
    const char* name;
    std::function<void(AttentionProblem&)> use;
  };
  const Feature features[] = {
      {"causal", [](AttentionProblem& p) { p.mask.window_right = 0; }},
      {"window", [](AttentionProblem& p) { p.mask.window_left = p.mask.window_right = 3; }},
      {"topleft",
       [](AttentionProblem& p) { p.mask.window_right = 0, p.mask.align = Corner::kTopLeft; }},
      {"softcap", [](AttentionProblem& p) { p.softcap = 30; }},
      {"alibi", [](AttentionProblem& p) { p.alibi = true; }},
      {"grouped heads",
       [](AttentionProblem& p) {
         if (p.group() == 1) p.num_heads *= 2;
       }},
      {"dv ≠ d", [](AttentionProblem& p) { p.head_dim_v = p.head_dim + 1; }},
      {"varlen",
       [](AttentionProblem& p) {
         p.varlen = true;
         p.total_q = p.max_seqlen_q = p.seqlen_q;
         p.total_k = p.max_seqlen_k = p.seqlen_k;
         p.seqlen_q = p.seqlen_k = 0;
       }},
  };
  std::string missing;
  for (const Feature& feature : features) {
    AttentionProblem p = base;
    feature.use(p);
    if (!computes(entry, p)) add_word(missing, feature.name);
  }
  return missing.empty() ? "everything" : "all but " + missing;
}

}  // namespace

std::string kernel_table() {
  std::string text =
      "| kernel | direction | types | head dims | query rows per kv head | masks and scores | how "
      "|\n"
      "|---|---|---|---|---|---|---|\n";
  for (const KernelEntry* entry : cpu::entries()) {
    const Found found = find_types(*entry);
    if (found.problems.empty()) continue;
    const AttentionProblem& p = found.problems.front();
    const char* directions = found.forward && found.backward ? "forward and backward"
                             : found.forward                 ? "forward"
                                                             : "backward";
    text += format("| `{}` | {} | {} | {} | {} | {} | {} |\n", entry->name, directions,
                   found.dtypes, dims_text(*entry, p), queries_text(*entry, p),
                   missing_text(*entry, p), entry->summary);
  }
  return text;
}

}  // namespace tilewise::cli
