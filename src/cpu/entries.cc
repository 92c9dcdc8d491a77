#include "cpu/entries.h"

namespace tilewise::cpu {

std::vector<const KernelEntry*> entries() {
  std::vector<const KernelEntry*> all;
  const auto append = [&all](const std::vector<const KernelEntry*>& list) {
    all.insert(all.end(), list.begin(), list.end());
  };
#if defined(TILEWISE_HAVE_decode)
  append(decode_entries());
#endif
#if defined(TILEWISE_HAVE_forward)
  append(forward_entries());
#endif
#if defined(TILEWISE_HAVE_backward)
  append(backward_entries());
#endif
  (void)append;
  all.push_back(reference_entry());
  return all;
}

}  // namespace tilewise::cpu
