#include "capi/library.h"

#include "cpu/entries.h"

namespace tilewise::capi {

const Registry& library_registry() {
  // Never destroyed: other threads may still run plans while the process exits.
  static const Registry* const registry = new Registry(cpu::entries());
  return *registry;
}

}  // namespace tilewise::capi
