#include "core/registry.h"

namespace tilewise {

const KernelEntry* Registry::find(std::string_view name) const {
  for (const KernelEntry* entry : entries_) {
    if (entry->name == name) return entry;
  }
  return nullptr;
}

std::vector<Candidate> Registry::candidates(const AttentionProblem& problem,
                                            const Device& device) const {
  std::vector<Candidate> all;
  all.reserve(entries_.size());
  for (const KernelEntry* entry : entries_)
    all.push_back({entry, entry->supports(problem, device)});
  return all;
}

}  // namespace tilewise
