// The JSON header, read event by event: duplicate keys are seen (a parsed tree hides them), and
// nothing of the size that the file claims is allocated.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "cli/io/safetensors.h"

namespace tilewise::cli {
namespace {

constexpr size_t kMostDimensions = 16;

// Where the parser stands in {"name": {"dtype": …, "shape": […], "data_offsets": […]}, …}.
enum class Level { kFile, kHeader, kTensor, kMetadata, kShape, kOffsets };

class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader header;
  Status status;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { return unexpected(to_text(value)); }
  bool number_float(number_float_t, const string_t& text) override { return unexpected(text); }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (level_ != Level::kShape && level_ != Level::kOffsets) return unexpected(to_text(value));
    if (value > static_cast<uint64_t>(INT64_MAX)) return unexpected(to_text(value));
    if (level_ == Level::kShape) {
      if (tensor_.shape.size() == kMostDimensions) {
        return fail("shape has more than {} dimensions", kMostDimensions);
      }
      tensor_.shape.push_back(static_cast<int64_t>(value));
    } else {
      if (offsets_ == 2) return fail("data_offsets has more than two numbers");
      (offsets_ == 0 ? tensor_.begin : tensor_.end) = value;
      ++offsets_;
    }
    return true;
  }

  bool string(string_t& value) override {
    if (level_ == Level::kMetadata) {
      header.metadata.emplace(key_, value);
      return true;
    }
    if (level_ != Level::kTensor || key_ != "dtype") return unexpected(quote(value));
    if (!element_type_of(value, tensor_.type)) return fail("unknown dtype {}", quote(value));
    return true;
  }

  bool start_object(std::size_t) override {
    if (level_ == Level::kFile) {
      level_ = Level::kHeader;
    } else if (level_ == Level::kHeader) {
      level_ = key_ == "__metadata__" ? Level::kMetadata : Level::kTensor;
      tensor_ = {};
      tensor_.name = key_;
      fields_.clear();
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    key_ = value;
    if (level_ == Level::kTensor) {
      if (value != "dtype" && value != "shape" && value != "data_offsets") {
        return fail("unknown field {}", quote(value));
      }
      if (!fields_.insert(value).second) return fail("{} is given twice", value);
    } else if (level_ == Level::kMetadata) {
      if (header.metadata.contains(value)) return fail("{} is given twice", quote(value));
    } else if (!names_.insert(value).second) {
      tensor_.name = value;
      return fail("the name is given twice");
    }
    return true;
  }

  bool end_object() override {
    if (level_ == Level::kMetadata) {
      level_ = Level::kHeader;
    } else if (level_ == Level::kTensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(field)) return fail("{} is missing", field);
      }
      header.tensors.push_back(std::move(tensor_));
      tensor_ = {};
      level_ = Level::kHeader;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (level_ != Level::kTensor || (key_ != "shape" && key_ != "data_offsets")) {
      return unexpected("an array");
    }
    level_ = key_ == "shape" ? Level::kShape : Level::kOffsets;
    offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (level_ == Level::kOffsets && offsets_ != 2) {
      return fail("data_offsets has {} numbers, expected two", offsets_);
    }
    level_ = Level::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    status = invalid_argument("the header is not JSON in UTF-8 from its byte {} on", position);
    return false;
  }

 private:
  template <class... Args>
  bool fail(std::string_view pattern, const Args&... args) {
    const std::string what = format(pattern, args...);
    const std::string where =
        level_ == Level::kMetadata ? std::string("__metadata__") : "tensor " + quote(tensor_.name);
    status = invalid_argument("{}: {}", where, what);
    return false;
  }
  bool unexpected(std::string_view what) {
    switch (level_) {
      case Level::kFile:
        status = invalid_argument("the header is {}, expected an object", what);
        return false;
      case Level::kHeader:
        status = invalid_argument("tensor {} is {}, expected an object", quote(key_), what);
        return false;
      case Level::kMetadata:
        return fail("{} is {}, expected a string", quote(key_), what);
      case Level::kTensor:
        return fail("{} is {}, expected {}", key_, what, key_ == "dtype" ? "a string" : "an array");
      default:
        return fail("{} has {}, expected integers from 0 to 2^63 - 1", key_, what);
    }
  }

  Level level_ = Level::kFile;
  std::string key_;
  TensorEntry tensor_;
  int offsets_ = 0;
  std::set<std::string> fields_, names_;
};

Status check_tensor(const TensorEntry& t, uint64_t data_bytes) {
  const std::string name = quote(t.name);
  if (t.begin > t.end || t.end > data_bytes) {
    return invalid_argument(
        "tensor {}: data_offsets [{}, {}] do not lie in the file's {} bytes of data", name, t.begin,
        t.end, data_bytes);
  }
  const Result<int64_t> count = element_count(t.shape);
  if (!count) return invalid_argument("tensor {}: {}", name, count.status().message());
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(*count), static_cast<uint64_t>(size_of(t.type)),
                             &bytes) ||
      bytes != t.end - t.begin) {
    return invalid_argument(
        "tensor {}: shape {} of {} does not take the {} bytes of data_offsets [{}, {}]", name,
        shape_text(t.shape), name_of(t.type), t.end - t.begin, t.begin, t.end);
  }
  return {};
}

}  // namespace

const TensorEntry* SafetensorsHeader::find(std::string_view name) const {
  for (const TensorEntry& t : tensors) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, uint64_t data_bytes) {
  if (json.empty() || json.front() != '{') {
    return invalid_argument("the header does not begin with a brace: not a safetensors file");
  }
  // The JSON library takes a zero byte for the end of its input.
  if (const size_t zero = json.find('\0'); zero != std::string_view::npos) {
    return invalid_argument("the header is not JSON in UTF-8 from its byte {} on", zero);
  }
  HeaderEvents events;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &events)) return events.status;
  std::vector<TensorEntry>& tensors = events.header.tensors;
  for (const TensorEntry& t : tensors) {
    if (Status status = check_tensor(t, data_bytes); !status.ok()) return status;
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t covered = 0;
  for (const TensorEntry& t : tensors) {
    if (t.begin != covered) {
      return invalid_argument(
          "tensor {}: data_offsets begin at {}, {} the tensor before it ends at {}", quote(t.name),
          t.begin, t.begin < covered ? "but" : "leaving a hole:", covered);
    }
    covered = t.end;
  }
  if (covered != data_bytes) {
    return invalid_argument("the tensors take {} bytes, the file has {}", covered, data_bytes);
  }
  return std::move(events.header);
}

}  // namespace tilewise::cli
