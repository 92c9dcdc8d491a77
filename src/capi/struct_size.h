// The rules of struct_size, which lets programs and libraries of different versions meet.
#pragma once

#include <cstddef>
#include <cstring>

#include "core/status.h"

namespace tilewise::capi {

// Nothing the library will ever define is larger: a size beyond this is uninitialised memory.
constexpr size_t kLargestStruct = 4096;

// Null, too small or absurd. `first_size` is the size of the struct when it was first released.
inline Status check_struct_size(const char* name, const void* given, size_t first_size) {
  if (given == nullptr) return invalid_argument("{} is null", name);
  size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < first_size) {
    return invalid_argument("{}.struct_size is {}; it must be at least {} (is it set?)", name, size,
                            first_size);
  }
  if (size > kLargestStruct) {
    return invalid_argument("{}.struct_size is {}; it must be at most {} (is it set?)", name, size,
                            kLargestStruct);
  }
  return {};
}

// Copies the caller's struct over `out`, which holds the defaults: an older, shorter struct leaves
// them in the fields it does not know; the part of a longer struct that we do not know must be
// zero.
template <class T>
Status read_struct(const char* name, const T* given, size_t first_size, T& out) {
  if (Status s = check_struct_size(name, given, first_size); !s.ok()) return s;
  const size_t size = given->struct_size;
  if (size > sizeof(T)) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(given);
    for (size_t i = sizeof(T); i < size; ++i) {
      if (bytes[i] != 0) {
        return invalid_argument(
            "{}.struct_size is {}; byte {} is not 0 and this library knows only {}", name, size, i,
            sizeof(T));
      }
    }
  }
  std::memcpy(static_cast<void*>(&out), given, size < sizeof(T) ? size : sizeof(T));
  out.struct_size = sizeof(T);
  return {};
}

// Copies `filled` into the caller's struct as far as that reaches; what we do not know becomes 0.
// check_struct_size comes first.
template <class T>
void write_struct(const T& filled, T* given) {
  const size_t size = given->struct_size;
  const size_t known = size < sizeof(T) ? size : sizeof(T);
  std::memcpy(static_cast<void*>(given), &filled, known);
  if (size > known) std::memset(reinterpret_cast<unsigned char*>(given) + known, 0, size - known);
  given->struct_size = size;
}

}  // namespace tilewise::capi
