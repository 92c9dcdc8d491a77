#include "cpu/entries.h"

namespace tilewise::cpu {

std::vector<const KernelEntry*> entries() {
  std::vector<const KernelEntry*> all;
  for (const auto& list : {decode_entries(), forward_entries(), backward_entries()}) {
    all.insert(all.end(), list.begin(), list.end());
  }
  all.push_back(reference_entry());
  return all;
}

}  // namespace tilewise::cpu
