#include "cli/io/safetensors.h"

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

namespace tilewise::cli {

static_assert(std::endian::native == std::endian::little, "tensor files are little-endian");

Result<SafetensorsReader> SafetensorsReader::open(const std::string& path) {
  Result<InputFile> file = InputFile::open(path);
  if (!file) return file.status();
  const uint64_t size = file->size();
  if (size < 8) {
    return file_error(path, format("has {} bytes, too few for a safetensors file", size));
  }
  uint64_t length = 0;
  std::byte length_bytes[8];
  if (Status status = file->read(0, length_bytes); !status.ok()) return status;
  std::memcpy(&length, length_bytes, sizeof length);
  if (length > kLongestSafetensorsHeader || length > size - 8) {
    return file_error(path, format("says that its header has {} bytes, but {}: truncated, or not a "
                                   "safetensors file",
                                   length,
                                   length > size - 8 ? format("only {} follow", size - 8)
                                                     : format("at most {} are allowed",
                                                              kLongestSafetensorsHeader)));
  }
  Bytes json(length);
  if (Status status = file->read(8, json); !status.ok()) return status;
  Result<SafetensorsHeader> header = parse_safetensors_header(
      {reinterpret_cast<const char*>(json.data()), json.size()}, size - 8 - length);
  if (!header) return file_error(path, header.status().message());
  return SafetensorsReader(std::move(*file), std::move(*header), 8 + length);
}

Result<Bytes> SafetensorsReader::read(const TensorEntry& tensor) const {
  Bytes bytes(tensor.end - tensor.begin);
  if (Status status = file_.read(data_begin_ + tensor.begin, bytes); !status.ok()) return status;
  return bytes;
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path,
                                                    std::vector<TensorEntry> tensors,
                                                    const Metadata& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  uint64_t at = 0;
  for (TensorEntry& t : tensors) {
    const Result<int64_t> count = element_count(t.shape);
    if (!count) return count.status();
    t.begin = at;
    at = t.end = at + static_cast<uint64_t>(*count * size_of(t.type));
    json[t.name] = {{"dtype", std::string(name_of(t.type))},
                    {"shape", t.shape},
                    {"data_offsets", {t.begin, t.end}}};
  }
  std::string text = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data begins at a multiple of 8

  Result<OutputFile> file = OutputFile::create(path);
  if (!file) return file.status();
  const uint64_t length = text.size();
  std::byte length_bytes[8];
  std::memcpy(length_bytes, &length, sizeof length);
  if (Status status = file->append(length_bytes); !status.ok()) return status;
  if (Status status = file->append(std::as_bytes(std::span(text))); !status.ok()) return status;
  return SafetensorsWriter(std::move(*file), std::move(tensors));
}

Status SafetensorsWriter::append(std::span<const std::byte> bytes) {
  if (next_ == tensors_.size() || bytes.size() != tensors_[next_].end - tensors_[next_].begin) {
    return {StatusCode::kInternal,
            format("tensor {} of {} has {} bytes", next_, tensors_.size(), bytes.size())};
  }
  ++next_;
  return file_.append(bytes);
}

Status SafetensorsWriter::commit() {
  if (next_ != tensors_.size()) {
    return {StatusCode::kInternal, format("{} of {} tensors written", next_, tensors_.size())};
  }
  return file_.commit();
}

}  // namespace tilewise::cli
