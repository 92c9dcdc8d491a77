#include "capi/library.h"

#include "cpu/entries.h"

#if defined(TILEWISE_USE_CUDA)
#include "cuda/entries.h"
#endif

namespace tilewise::capi {

const Registry& library_registry() {
  // Never destroyed: other threads may still run plans while the process exits.
  static const Registry* const registry = [] {
    std::vector<const KernelEntry*> all;
#if defined(TILEWISE_USE_CUDA)
    all = cuda::entries();
#endif
    const auto cpu = cpu::entries();
    all.insert(all.end(), cpu.begin(), cpu.end());
    return new Registry(std::move(all));
  }();
  return *registry;
}

}  // namespace tilewise::capi
