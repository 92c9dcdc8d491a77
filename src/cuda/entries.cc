#include "cuda/entries.h"

#include "cuda/sm80/entries.h"
#include "cuda/sm90/entries.h"

namespace tilewise::cuda {

std::vector<const KernelEntry*> entries() {
  std::vector<const KernelEntry*> all;
  for (const auto& list :
       {sm90::forward_entries(), sm80::forward_entries(), sm80::backward_entries()}) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

}  // namespace tilewise::cuda
