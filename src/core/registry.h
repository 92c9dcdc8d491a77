// The ordered list of kernels. First yes wins; the list is also what `explain`, the support table
// and the text of an "unsupported" error are printed from.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/plan.h"
#include "core/problem.h"
#include "core/status.h"

namespace tilewise {

struct Answer {
  bool yes = false;
  std::string reason;  // why not
};
inline Answer yes() { return {true, {}}; }
template <class... Args>
Answer no(std::string_view pattern, const Args&... args) {
  return {false, format(pattern, args...)};
}

struct KernelEntry {
  std::string_view name;     // "cpu.forward.avx2"
  std::string_view summary;  // one line for the support table
  Answer (*supports)(const AttentionProblem&, const Device&);
  // Fills plan.shape and plan.workspace_bytes for plan.problem on plan.device; may refuse sizes
  // that overflow.
  Status (*shape)(Plan& plan, const PlanOptions& options);
  // Null when the entry does not compute that direction. Arguments have been checked.
  Status (*forward)(const Plan&, const ForwardArgs&);
  Status (*backward)(const Plan&, const BackwardArgs&);
};

struct Candidate {
  const KernelEntry* entry = nullptr;
  Answer answer;
};

class Registry {
 public:
  explicit Registry(std::vector<const KernelEntry*> entries) : entries_(std::move(entries)) {}

  std::span<const KernelEntry* const> entries() const { return entries_; }
  const KernelEntry* find(std::string_view name) const;
  // Every entry with its answer, in order.
  std::vector<Candidate> candidates(const AttentionProblem& problem, const Device& device) const;

 private:
  std::vector<const KernelEntry*> entries_;
};

}  // namespace tilewise
