// Counts allocations of the whole process, and makes one of operator new's fail on request.
#pragma once

#include <cstdint>

// A sanitizer brings its own malloc.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TILEWISE_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TILEWISE_SANITIZED
#endif
#endif

namespace tilewise::test {

#if defined(TILEWISE_SANITIZED)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Calls of malloc, calloc, realloc, aligned_alloc and posix_memalign so far, operator new's among
// them; only of operator new when sanitized.
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
