// Counts allocations of the whole process, and makes one of operator new's fail on request.
#pragma once

#include <cstdint>

namespace tilewise::test {

// Calls of malloc, calloc, realloc, aligned_alloc and posix_memalign so far, operator new's among
// them.
int64_t allocations();
// operator new minus operator delete.
int64_t live_objects();

// While it lives, allocation number `nth` (from 0) of operator new on this thread fails once.
class FailAllocation {
 public:
  explicit FailAllocation(int64_t nth);
  ~FailAllocation();
  bool happened() const;
};

int64_t resident_bytes();  // of this process

}  // namespace tilewise::test
