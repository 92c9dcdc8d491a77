#include "core/format.h"

#include <charconv>

namespace tilewise {
namespace {
template <class T>
std::string shortest(T value) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, result.ptr);
}
}  // namespace

std::string to_text(int64_t value) { return shortest(value); }
std::string to_text(uint64_t value) { return shortest(value); }
std::string to_text(double value) { return shortest(value); }
std::string to_text(float value) { return shortest(value); }

namespace format_detail {
void append_until_brace(std::string& out, std::string_view& pattern) {
  const size_t brace = pattern.find("{}");
  out += pattern.substr(0, brace);
  pattern = brace == std::string_view::npos ? std::string_view() : pattern.substr(brace + 2);
}
}  // namespace format_detail
}  // namespace tilewise
