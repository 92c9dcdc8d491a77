// NumPy's .npy format: "\x93NUMPY", version, header length, a Python dictionary as text, then the
// elements. Little-endian and C order only; versions 1, 2 and 3.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/io/element.h"
#include "cli/io/file.h"

namespace tilewise::cli {

struct NpyHeader {
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;
};

// The dictionary alone: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
Result<NpyHeader> parse_npy_dictionary(std::string_view text);

struct NpyArray {
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;
  Bytes bytes;
};
Result<NpyArray> read_npy(const std::string& path);

// The file's beginning for an array of that type and shape (F16, F32 and F64 have a NumPy type).
Result<Bytes> npy_preamble(ElementType type, std::span<const int64_t> shape);

}  // namespace tilewise::cli
