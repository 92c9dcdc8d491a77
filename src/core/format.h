// format("head_dim {} > {}", d, 512): text with values in it, for reasons and error messages.
// (g++ 12 has no <format>.)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace tilewise {

std::string to_text(int64_t value);
std::string to_text(uint64_t value);
std::string to_text(double value);  // shortest text that reads back as the same value
std::string to_text(float value);

namespace format_detail {
inline std::string text_of(std::string_view value) { return std::string(value); }
inline std::string text_of(const char* value) { return value; }
inline std::string text_of(bool value) { return value ? "true" : "false"; }
inline std::string text_of(float value) { return to_text(value); }
inline std::string text_of(double value) { return to_text(value); }
template <class T>
requires(std::is_integral_v<T> && !std::is_same_v<T, bool>) std::string text_of(T value) {
  if constexpr (std::is_signed_v<T>) return to_text(static_cast<int64_t>(value));
  return to_text(static_cast<uint64_t>(value));
}
void append_until_brace(std::string& out, std::string_view& pattern);
}  // namespace format_detail

// Replaces each {} of `pattern` by the next argument.
template <class... Args>
std::string format(std::string_view pattern, const Args&... args) {
  std::string out;
  ((format_detail::append_until_brace(out, pattern), out += format_detail::text_of(args)), ...);
  out += pattern;
  return out;
}

}  // namespace tilewise
