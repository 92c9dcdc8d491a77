// The safetensors format: 8 bytes header length (little-endian), a JSON header, then the tensors'
// bytes, row-major, without holes. Written from the format's description, for files that may be
// truncated, corrupt or hostile.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/io/element.h"
#include "cli/io/file.h"

namespace tilewise::cli {

struct TensorEntry {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, from the end of the header

  bool operator==(const TensorEntry&) const = default;
};

using Metadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their bytes
  Metadata metadata;

  const TensorEntry* find(std::string_view name) const;
};

constexpr uint64_t kLongestSafetensorsHeader = 100'000'000;  // bytes; the format's own limit

// `json` is the header without its length, `data_bytes` what follows it in the file. Every tensor's
// dtype, shape and offsets fit together and cover the data exactly once.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, uint64_t data_bytes);

class SafetensorsReader {
 public:
  static Result<SafetensorsReader> open(const std::string& path);

  const SafetensorsHeader& header() const { return header_; }
  const InputFile& file() const { return file_; }
  Result<Bytes> read(const TensorEntry& tensor) const;

 private:
  SafetensorsReader(InputFile file, SafetensorsHeader header, uint64_t data_begin)
      : file_(std::move(file)), header_(std::move(header)), data_begin_(data_begin) {}
  InputFile file_;
  SafetensorsHeader header_;
  uint64_t data_begin_ = 0;
};

// Declares all tensors first (name, type and shape; the offsets are filled in), then takes their
// bytes one after the other in that order.
class SafetensorsWriter {
 public:
  static Result<SafetensorsWriter> create(const std::string& path, std::vector<TensorEntry> tensors,
                                          const Metadata& metadata);
  Status append(std::span<const std::byte> bytes);  // of the next tensor, whole
  Status commit();

 private:
  SafetensorsWriter(OutputFile file, std::vector<TensorEntry> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}
  OutputFile file_;
  std::vector<TensorEntry> tensors_;
  size_t next_ = 0;
};

}  // namespace tilewise::cli
