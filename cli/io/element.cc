#include "cli/io/element.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "harness/buffers.h"

namespace tilewise::cli {
namespace {

struct TypeRow {
  ElementType type;
  std::string_view name;
  int64_t size;
};
constexpr TypeRow kTypes[] = {
    {ElementType::kBool, "BOOL", 1},      {ElementType::kU8, "U8", 1},
    {ElementType::kI8, "I8", 1},          {ElementType::kF8E5M2, "F8_E5M2", 1},
    {ElementType::kF8E4M3, "F8_E4M3", 1}, {ElementType::kI16, "I16", 2},
    {ElementType::kU16, "U16", 2},        {ElementType::kF16, "F16", 2},
    {ElementType::kBf16, "BF16", 2},      {ElementType::kI32, "I32", 4},
    {ElementType::kU32, "U32", 4},        {ElementType::kF32, "F32", 4},
    {ElementType::kI64, "I64", 8},        {ElementType::kU64, "U64", 8},
    {ElementType::kF64, "F64", 8},
};

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
}  // namespace

std::string_view name_of(ElementType t) { return kTypes[static_cast<int>(t)].name; }
int64_t size_of(ElementType t) { return kTypes[static_cast<int>(t)].size; }

bool element_type_of(std::string_view name, ElementType& t) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) {
      t = row.type;
      return true;
    }
  }
  return false;
}

ElementType element_type_of(DType t) {
  switch (t) {
    case DType::kFp16:
      return ElementType::kF16;
    case DType::kBf16:
      return ElementType::kBf16;
    case DType::kFp32:
      return ElementType::kF32;
    default:
      return ElementType::kF64;
  }
}

bool dtype_of(ElementType t, DType& dtype) {
  for (const DType d : {DType::kFp16, DType::kBf16, DType::kFp32, DType::kFp64}) {
    if (element_type_of(d) == t) {
      dtype = d;
      return true;
    }
  }
  return false;
}

Result<Bytes> convert(std::span<const std::byte> bytes, DType from, DType to) {
  if (from == to) return Bytes(bytes.begin(), bytes.end());
  const size_t in_size = static_cast<size_t>(size_of(from));
  const size_t out_size = static_cast<size_t>(size_of(to));
  const size_t count = bytes.size() / in_size;
  Bytes out(count * out_size);
  for (size_t i = 0; i < count; ++i) {
    const double value = harness::load_element(from, bytes.data() + i * in_size);
    std::byte* at = out.data() + i * out_size;
    harness::store_element(to, at, value);
    if (std::isfinite(value) && !std::isfinite(harness::load_element(to, at))) {
      return invalid_argument("element {} is {}, too large for {}", i, value, name_of(to));
    }
  }
  return out;
}

Result<std::vector<int32_t>> read_int32(std::span<const std::byte> bytes, ElementType from) {
  if (from != ElementType::kI32 && from != ElementType::kI64) {
    return invalid_argument("dtype {}: expected I32 or I64", name_of(from));
  }
  const size_t size = static_cast<size_t>(size_of(from));
  std::vector<int32_t> out(bytes.size() / size);
  for (size_t i = 0; i < out.size(); ++i) {
    const std::byte* at = bytes.data() + i * size;
    const int64_t value = from == ElementType::kI32 ? load<int32_t>(at) : load<int64_t>(at);
    if (value < std::numeric_limits<int32_t>::min() ||
        value > std::numeric_limits<int32_t>::max()) {
      return invalid_argument("element {} is {}, which does not fit into 32 bits", i, value);
    }
    out[i] = static_cast<int32_t>(value);
  }
  return out;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += to_text(shape[i]);
  }
  if (shape.size() == 1) text += ",";
  return text + ")";
}

Result<int64_t> element_count(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (size < 0) return invalid_argument("shape {} has a negative size", shape_text(shape));
  }
  for (const int64_t size : shape) {
    if (size == 0) return int64_t{0};
  }
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(count, size, &count)) {
      return invalid_argument("shape {} has more elements than fit into 63 bits",
                              shape_text(shape));
    }
  }
  return count;
}

std::string quote(std::string_view text) {
  constexpr size_t kMost = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kMost)) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      constexpr char kHex[] = "0123456789abcdef";
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + (text.size() > kMost ? "...\"" : "\"");
}

}  // namespace tilewise::cli
