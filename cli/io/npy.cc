#include "cli/io/npy.h"

#include <charconv>
#include <cstring>

namespace tilewise::cli {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr uint64_t kLongestHeader = 1 << 20;  // bytes; NumPy's own are padded to a multiple of 64

struct TypeRow {
  std::string_view descr;
  ElementType type;
};
constexpr TypeRow kTypes[] = {
    {"<f2", ElementType::kF16}, {"<f4", ElementType::kF32}, {"<f8", ElementType::kF64},
    {"<i4", ElementType::kI32}, {"<i8", ElementType::kI64},
};

// Reads the few Python literals that an .npy dictionary is made of.
class Literals {
 public:
  explicit Literals(std::string_view text) : text_(text) {}

  bool take(char c) {
    skip_space();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool take_word(std::string_view word) {
    skip_space();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  bool string(std::string& out) {
    const char quote = take('\'') ? '\'' : take('"') ? '"' : '\0';
    if (quote == '\0') return false;
    const size_t end = text_.find(quote);
    if (end == std::string_view::npos) return false;
    out = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return true;
  }
  bool integer(int64_t& out) {
    skip_space();
    const auto result = std::from_chars(text_.data(), text_.data() + text_.size(), out);
    if (result.ec != std::errc()) return false;
    text_.remove_prefix(static_cast<size_t>(result.ptr - text_.data()));
    take('L');  // written by Python 2
    return true;
  }
  bool at_end() {
    skip_space();
    return text_.empty();
  }
  bool next_is(char c) {
    skip_space();
    return !text_.empty() && text_.front() == c;
  }

 private:
  void skip_space() {
    while (!text_.empty() &&
           (text_.front() == ' ' || text_.front() == '\n' || text_.front() == '\t')) {
      text_.remove_prefix(1);
    }
  }
  std::string_view text_;
};

Status parse_descr(Literals& in, NpyHeader& header) {
  if (in.next_is('[')) return invalid_argument("descr is a structured dtype, which is not read");
  std::string descr;
  if (!in.string(descr)) return invalid_argument("descr is not a string");
  for (const TypeRow& row : kTypes) {
    if (row.descr == descr) {
      header.type = row.type;
      return {};
    }
  }
  if (descr.starts_with('>')) {
    return invalid_argument("descr {}: big-endian is not read; save it little-endian",
                            quote(descr));
  }
  if (descr == "|V2") {
    return invalid_argument(
        "descr \"|V2\": NumPy has no name for bfloat16; use a safetensors file, "
        "or save float32 and add --dtype bf16");
  }
  return invalid_argument(
      "descr {} is not read; expected <f2, <f4 or <f8 (sequence lengths: <i4 or <i8)",
      quote(descr));
}

Status parse_order(Literals& in) {
  if (in.take_word("False")) return {};
  if (in.take_word("True")) {
    return invalid_argument("fortran_order is True; save numpy.ascontiguousarray(array)");
  }
  return invalid_argument("fortran_order is neither True nor False");
}

Status parse_shape(Literals& in, NpyHeader& header) {
  constexpr size_t kMostDimensions = 16;
  if (!in.take('(')) return invalid_argument("shape is not a tuple");
  while (!in.take(')')) {
    int64_t size = 0;
    if (!in.integer(size)) return invalid_argument("shape is not a tuple of integers");
    if (header.shape.size() == kMostDimensions) {
      return invalid_argument("shape has more than {} dimensions", kMostDimensions);
    }
    header.shape.push_back(size);
    if (!in.take(',') && !in.next_is(')')) {
      return invalid_argument("shape is not a tuple of integers");
    }
  }
  return {};
}

}  // namespace

Result<NpyHeader> parse_npy_dictionary(std::string_view text) {
  constexpr std::string_view kKeys[] = {"descr", "fortran_order", "shape"};
  bool seen[3] = {};
  NpyHeader header;
  Literals in(text);
  if (!in.take('{')) return invalid_argument("the header is not a dictionary");
  while (!in.take('}')) {
    std::string key;
    if (!in.string(key) || !in.take(':')) return invalid_argument("the header is not a dictionary");
    size_t which = 0;
    while (which < 3 && kKeys[which] != key) ++which;
    if (which == 3) return invalid_argument("the header has an unknown key {}", quote(key));
    if (seen[which]) return invalid_argument("the header gives {} twice", key);
    seen[which] = true;
    Status status = which == 0   ? parse_descr(in, header)
                    : which == 1 ? parse_order(in)
                                 : parse_shape(in, header);
    if (!status.ok()) return status;
    if (!in.take(',') && !in.next_is('}'))
      return invalid_argument("the header is not a dictionary");
  }
  if (!in.at_end()) return invalid_argument("the header goes on after its dictionary");
  for (size_t i = 0; i < 3; ++i) {
    if (!seen[i]) return invalid_argument("the header has no {}", kKeys[i]);
  }
  return header;
}

Result<NpyArray> read_npy(const std::string& path) {
  Result<InputFile> file = InputFile::open(path);
  if (!file) return file.status();
  std::byte start[12] = {};
  const size_t start_size = std::min<uint64_t>(sizeof start, file->size());
  if (Status status = file->read(0, std::span(start, start_size)); !status.ok()) return status;
  if (start_size < 10 || std::memcmp(start, kMagic.data(), kMagic.size()) != 0) {
    return file_error(path, "does not begin as an .npy file does");
  }
  const int major = std::to_integer<int>(start[6]), minor = std::to_integer<int>(start[7]);
  if (major < 1 || major > 3 || minor != 0) {
    return file_error(path,
                      format("has .npy version {}.{}, expected 1.0, 2.0 or 3.0", major, minor));
  }
  const uint64_t begin = major == 1 ? 10 : 12;
  if (file->size() < begin) return file_error(path, "ends inside its header");
  uint64_t length = std::to_integer<uint64_t>(start[8]) | std::to_integer<uint64_t>(start[9]) << 8;
  if (major > 1) {
    length |= std::to_integer<uint64_t>(start[10]) << 16 | std::to_integer<uint64_t>(start[11])
                                                               << 24;
  }
  if (length > kLongestHeader || length > file->size() - begin) {
    return file_error(path, format("says that its header has {} bytes, but {} follow", length,
                                   file->size() - begin));
  }
  std::string text(length, '\0');
  if (Status status = file->read(begin, std::as_writable_bytes(std::span(text))); !status.ok()) {
    return status;
  }
  const Result<NpyHeader> header = parse_npy_dictionary(text);
  if (!header) return file_error(path, header.status().message());
  const Result<int64_t> count = element_count(header->shape);
  if (!count) return file_error(path, count.status().message());
  uint64_t bytes = 0;
  const uint64_t found = file->size() - begin - length;
  if (__builtin_mul_overflow(static_cast<uint64_t>(*count),
                             static_cast<uint64_t>(size_of(header->type)), &bytes) ||
      bytes != found) {
    return file_error(path, format("has {} bytes of data, but shape {} of {} takes another number",
                                   found, shape_text(header->shape), name_of(header->type)));
  }
  NpyArray array{header->type, header->shape, Bytes(bytes)};
  if (Status status = file->read(begin + length, array.bytes); !status.ok()) return status;
  return array;
}

Result<Bytes> npy_preamble(ElementType type, std::span<const int64_t> shape) {
  for (const TypeRow& row : kTypes) {
    if (row.type != type) continue;
    std::string text = format("{'descr': '{}', 'fortran_order': False, 'shape': {}, }", row.descr,
                              shape_text(shape));
    constexpr size_t kPreamble = 10, kAlign = 64;
    text.resize((kPreamble + text.size() + 1 + kAlign - 1) / kAlign * kAlign - kPreamble, ' ');
    text.back() = '\n';
    std::string out(kMagic);
    out += {'\1', '\0', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
    out += text;
    const auto bytes = std::as_bytes(std::span(out));
    return Bytes(bytes.begin(), bytes.end());
  }
  return invalid_argument("NumPy has no type for {}; write a .safetensors file", name_of(type));
}

}  // namespace tilewise::cli
