// Element types of tensor files, and their conversion to the types a problem computes in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"

namespace tilewise::cli {

using Bytes = std::vector<std::byte>;

// The types a safetensors file may hold. Only the floating-point ones and the two integers that
// sequence lengths come in are ever read; the others may lie beside them.
enum class ElementType {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64
};

std::string_view name_of(ElementType t);  // as safetensors spells it: "BF16"
int64_t size_of(ElementType t);           // bytes
// False when `name` is none of them.
bool element_type_of(std::string_view name, ElementType& t);

ElementType element_type_of(DType t);
// False unless t is F16, BF16, F32 or F64.
bool dtype_of(ElementType t, DType& dtype);

// The same values in another type, rounded once. A finite value that would become infinite is an
// error with its place.
Result<Bytes> convert(std::span<const std::byte> bytes, DType from, DType to);

// I32 or I64 values that fit into 32 bits; anything else is an error with its place.
Result<std::vector<int32_t>> read_int32(std::span<const std::byte> bytes, ElementType from);

// "(2, 77, 6, 32)"
std::string shape_text(std::span<const int64_t> shape);
// Product of the sizes; an error when one is negative or the product does not fit into 63 bits.
Result<int64_t> element_count(std::span<const int64_t> shape);

// A name from a file as it may be shown: quoted, control characters escaped, at most 80 bytes.
std::string quote(std::string_view text);

}  // namespace tilewise::cli
