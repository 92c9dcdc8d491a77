#include "cli/run_input.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <memory>

#include "cli/io/npy.h"
#include "cli/problems.h"

namespace tilewise::cli {
namespace {

bool is_npy(const std::string& path) { return path.ends_with(".npy"); }
bool is_file_name(const std::string& path) {
  return is_npy(path) || path.ends_with(".safetensors");
}

// The words of the grammar that say what the tensors already say.
Status check_word(const std::string& word) {
  for (const char* dtype : {"fp16", "bf16", "fp32", "fp64"}) {
    if (word == dtype)
      return invalid_argument("\"{}\": the type is the file's; --dtype {} changes it", word, word);
  }
  for (const char* option : {"varlen", "layout", "stride", "offset", "data", "seed"}) {
    if (word == option || word.starts_with(std::string(option) + ":")) {
      return invalid_argument("\"{}\": tensors, lengths and layout come from the file", word);
    }
  }
  for (const char* size : {"b", "sq", "sk", "h", "hk", "d", "dv"}) {
    const size_t n = std::strlen(size);
    if (word.size() > n && word.starts_with(size) &&
        std::isdigit(static_cast<unsigned char>(word[n])) != 0) {
      return invalid_argument("\"{}\": sizes come from the tensors", word);
    }
  }
  return {};
}

Result<TensorSource> open_npy(const std::vector<std::string>& files) {
  constexpr const char* kNames[] = {"q", "k", "v", "do"};
  if (files.size() < 3 || files.size() > 4) {
    return invalid_argument("{} .npy files: expected q.npy k.npy v.npy and perhaps do.npy",
                            files.size());
  }
  TensorSource source;
  auto arrays = std::make_shared<std::vector<NpyArray>>();
  for (size_t i = 0; i < files.size(); ++i) {
    Result<NpyArray> array = read_npy(files[i]);
    if (!array) return array.status();
    source.name += (i == 0 ? "" : " ") + files[i];
    source.tensors.push_back({kNames[i], array->type, array->shape, i, i});
    arrays->push_back(std::move(*array));
  }
  source.read = [arrays](const TensorEntry& t) -> Result<Bytes> {
    return (*arrays)[t.begin].bytes;
  };
  source.is_input = [files](const std::string& path) {
    return std::find(files.begin(), files.end(), path) != files.end();
  };
  return source;
}

}  // namespace

const TensorEntry* TensorSource::find(const std::string& tensor) const {
  for (const TensorEntry& t : tensors) {
    if (t.name == tensor) return &t;
  }
  return nullptr;
}

bool natural_less(const std::string& a, const std::string& b) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    const auto number_at = [&is_digit](const std::string& s, size_t& at) {
      while (at < s.size() && s[at] == '0') ++at;
      const size_t begin = at;
      while (at < s.size() && is_digit(s[at])) ++at;
      return s.substr(begin, at - begin);
    };
    const std::string x = number_at(a, i), y = number_at(b, j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  return i == a.size() && j < b.size();
}

Result<RunArguments> split_arguments(const std::vector<std::string>& arguments) {
  RunArguments out;
  for (const std::string& argument : arguments) {
    if (is_file_name(argument)) {
      out.files.push_back(argument);
    } else if (out.files.empty() && out.words.empty() && argument.find('/') != std::string::npos) {
      out.files.push_back(argument);  // a file of any other name must come first
    } else {
      out.words += (out.words.empty() ? "" : " ") + argument;
    }
  }
  if (out.files.empty()) {
    return invalid_argument("no input: \"{}\" ends in neither .safetensors nor .npy",
                            arguments.front());
  }
  std::string line = "fp32 b1 sq1 h1 d1 " + out.words;
  size_t begin = 0;
  bool backward = false;
  while ((begin = out.words.find_first_not_of(" \t", begin)) != std::string::npos) {
    const size_t end = std::min(out.words.find_first_of(" \t", begin), out.words.size());
    const std::string word = out.words.substr(begin, end - begin);
    if (Status status = check_word(word); !status.ok()) return status;
    backward = backward || word == "backward";
    begin = end;
  }
  // A file with `do` makes the problem a backward one later.
  Result<ProblemCase> parsed = read_case(backward ? line : line + " backward");
  if (!parsed) return parsed.status();
  out.options = std::move(*parsed);
  if (!backward) out.options.problem.direction = Direction::kForward;
  return out;
}

Result<TensorSource> open_source(const std::vector<std::string>& files) {
  if (std::any_of(files.begin(), files.end(), is_npy)) {
    if (!std::all_of(files.begin(), files.end(), is_npy)) {
      return invalid_argument("{} and {}: one kind of file at a time", files[0], files[1]);
    }
    return open_npy(files);
  }
  if (files.size() != 1) {
    return invalid_argument("{} and {}: one safetensors file at a time", files[0], files[1]);
  }
  Result<SafetensorsReader> opened = SafetensorsReader::open(files[0]);
  if (!opened) return opened.status();
  const auto reader = std::make_shared<SafetensorsReader>(std::move(*opened));
  TensorSource source;
  source.name = files[0];
  source.tensors = reader->header().tensors;
  source.metadata = reader->header().metadata;
  source.read = [reader](const TensorEntry& t) { return reader->read(t); };
  source.is_input = [reader](const std::string& path) { return reader->file().is_same_file(path); };
  return source;
}

Status load_inputs(const TensorSource& source, const RunCase& c, harness::Tensors& tensors) {
  const AttentionProblem& p = c.problem();
  const auto load = [&](const TensorEntry* entry, TensorId t) -> Status {
    const Result<Bytes> bytes = source.read(*entry);
    if (!bytes) return bytes.status();
    const Result<Bytes> values = convert(*bytes, c.file_dtype, p.dtype);
    if (!values) {
      return invalid_argument("{}: tensor {}: {}", source.name, quote(entry->name),
                              values.status().message());
    }
    // The default layout of a case has no gaps.
    if (!values->empty()) std::memcpy(tensors.pointer(t), values->data(), values->size());
    return {};
  };
  if (Status status = load(c.q, TensorId::kQ); !status.ok()) return status;
  if (Status status = load(c.k, TensorId::kK); !status.ok()) return status;
  if (Status status = load(c.v, TensorId::kV); !status.ok()) return status;
  if (p.backward()) {
    if (Status status = load(c.do_, TensorId::kDo); !status.ok()) return status;
  }
  if (!p.alibi) return {};
  const Result<Bytes> slopes = source.read(*c.alibi_slopes);
  if (!slopes) return slopes.status();
  const bool per_batch = c.alibi_slopes->shape.size() == 2;
  const size_t row = static_cast<size_t>(p.num_heads) * sizeof(float);
  const int64_t rows = tensors.alibi_batch_stride() == 0 ? 1 : p.batch;
  for (int64_t b = 0; b < rows; ++b) {
    std::memcpy(tensors.alibi_slopes() + b * tensors.alibi_batch_stride(),
                slopes->data() + (per_batch ? static_cast<size_t>(b) * row : 0), row);
  }
  return {};
}

}  // namespace tilewise::cli
