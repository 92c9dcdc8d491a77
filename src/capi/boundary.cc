#include "capi/boundary.h"

#include <cstring>

namespace tilewise::capi {
namespace {
// The longest text lists every kernel with its reason. Zero-initialised: costs nothing until used.
constexpr size_t kErrorCapacity = 4096;
thread_local char error_text[kErrorCapacity];
}  // namespace

tilewise_status fail(StatusCode code, std::string_view message) {
  constexpr std::string_view kEllipsis = "...";
  size_t size = message.size();
  if (size >= kErrorCapacity) {
    size = kErrorCapacity - 1;
    std::memcpy(error_text + size - kEllipsis.size(), kEllipsis.data(), kEllipsis.size());
    std::memcpy(error_text, message.data(), size - kEllipsis.size());
  } else {
    std::memcpy(error_text, message.data(), size);
  }
  error_text[size] = '\0';
  return static_cast<tilewise_status>(code);
}

const char* last_error() { return error_text; }

}  // namespace tilewise::capi
