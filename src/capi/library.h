// What there is one of in a process: the registry.
#pragma once

#include "core/registry.h"

namespace tilewise::capi {

// Every kernel of this build, best first. Made at the first call.
const Registry& library_registry();

}  // namespace tilewise::capi
