#include "cuda/entries.h"

#include "cuda/sm80/entries.h"
#include "cuda/sm90/entries.h"

namespace tilewise::cuda {

std::vector<const KernelEntry*> entries() {
  std::vector<const KernelEntry*> all;
  const auto append = [&](const std::vector<const KernelEntry*>& list) {
    all.insert(all.end(), list.begin(), list.end());
  };
#if defined(TILEWISE_USE_SM90)
  append(sm90::forward_entries());
  append(sm90::backward_entries());
#endif
  append(sm80::forward_entries());
#if defined(TILEWISE_USE_SM90)
  append(sm90::few_query_entries());
#endif
  append(sm80::backward_entries());
  return all;
}

}  // namespace tilewise::cuda
