// Tests that do less under a sanitizer.
#pragma once

#include <cstdint>

namespace tilewise {

// Sanitizers make a case cost 5 to 20 times as much: there the long loops run every n-th case only.
// The release build runs them all.
class Thinned {
 public:
  explicit Thinned(uint64_t every_when_sanitized = 7) : every_(every_when_sanitized) {}
  // Whether to leave the next case out.
  bool skips() { return kSanitized && count_++ % every_ != 0; }

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  static constexpr bool kSanitized = true;
#else
  static constexpr bool kSanitized = false;
#endif
#else
  static constexpr bool kSanitized = false;
#endif

 private:
  uint64_t every_, count_ = 0;
};

}  // namespace tilewise
