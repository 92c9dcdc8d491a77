#include "cli/run_output.h"

#include <algorithm>
#include <filesystem>

#include "cli/io/npy.h"

namespace tilewise::cli {
namespace {

// The results of a case in the order in which they are written.
std::vector<TensorEntry> results_of(const RunCase& c) {
  const AttentionProblem& p = c.problem();
  const ElementType type = element_type_of(p.dtype);
  const auto shape = [&p](TensorId t) {
    const Extents e = p.extents(t);
    if (p.varlen) return std::vector<int64_t>{e.seqlen, e.heads, e.dim};
    return std::vector<int64_t>{e.batch, e.seqlen, e.heads, e.dim};
  };
  std::vector<int64_t> lse_shape = {p.batch, p.num_heads, p.seqlen_q};
  if (p.varlen) lse_shape = {p.num_heads, p.total_q};
  std::vector<TensorEntry> entries = {{c.prefix + "o", type, shape(TensorId::kO), 0, 0},
                                      {c.prefix + "lse", ElementType::kF32, lse_shape, 0, 0}};
  if (!p.backward()) return entries;
  for (const TensorId t : {TensorId::kDq, TensorId::kDk, TensorId::kDv}) {
    entries.push_back({c.prefix + name_of(t), type, shape(t), 0, 0});
  }
  return entries;
}

// Calls put(bytes) for each tensor of results_of().
template <class F>
Status each_result(const RunCase& c, const harness::Tensors& tensors, const F& put) {
  const std::vector<std::byte> o = tensors.packed(TensorId::kO);
  const std::vector<float> lse = tensors.packed_lse();
  if (Status status = put(std::span<const std::byte>(o)); !status.ok()) return status;
  if (Status status = put(std::as_bytes(std::span<const float>(lse))); !status.ok()) return status;
  if (!c.problem().backward()) return {};
  for (const TensorId t : {TensorId::kDq, TensorId::kDk, TensorId::kDv}) {
    const std::vector<std::byte> bytes = tensors.packed(t);
    if (Status status = put(std::span<const std::byte>(bytes)); !status.ok()) return status;
  }
  return {};
}

class SafetensorsResults : public ResultWriter {
 public:
  SafetensorsResults(SafetensorsWriter writer, std::string path, size_t tensors)
      : writer_(std::move(writer)), path_(std::move(path)), tensors_(tensors) {}
  Status append(const RunCase& c, const harness::Tensors& tensors) override {
    return each_result(c, tensors,
                       [this](std::span<const std::byte> bytes) { return writer_.append(bytes); });
  }
  Status commit() override { return writer_.commit(); }
  std::string summary() const override { return format("{}: {} tensors", path_, tensors_); }

 private:
  SafetensorsWriter writer_;
  std::string path_;
  size_t tensors_;
};

class NpyResults : public ResultWriter {
 public:
  NpyResults(std::vector<OutputFile> files, std::string summary)
      : files_(std::move(files)), summary_(std::move(summary)) {}
  Status append(const RunCase& c, const harness::Tensors& tensors) override {
    size_t next = 0;
    return each_result(c, tensors, [this, &next](std::span<const std::byte> bytes) {
      return files_[next++].append(bytes);
    });
  }
  Status commit() override {
    for (OutputFile& file : files_) {
      if (Status status = file.commit(); !status.ok()) return status;
    }
    return {};
  }
  std::string summary() const override { return summary_; }

 private:
  std::vector<OutputFile> files_;
  std::string summary_;
};

Result<std::unique_ptr<ResultWriter>> create_safetensors(const std::string& output,
                                                         const RunInput& input) {
  std::vector<TensorEntry> entries;
  Metadata metadata = {{"format", "tilewise"}};
  for (const RunCase& c : input.cases) {
    if (!c.written) continue;
    for (TensorEntry& entry : results_of(c)) entries.push_back(std::move(entry));
    metadata[c.prefix + "problem"] = print(c.problem_case);
  }
  const size_t count = entries.size();
  Result<SafetensorsWriter> writer =
      SafetensorsWriter::create(output, std::move(entries), metadata);
  if (!writer) return writer.status();
  return std::unique_ptr<ResultWriter>(
      std::make_unique<SafetensorsResults>(std::move(*writer), output, count));
}

Result<std::unique_ptr<ResultWriter>> create_npy(const std::string& output, const RunInput& input) {
  const auto count = std::count_if(input.cases.begin(), input.cases.end(),
                                   [](const RunCase& c) { return c.written; });
  if (count != 1) {
    return file_error(output,
                      format("{} cases need a .safetensors output; a directory holds one", count));
  }
  std::error_code error;
  if (!std::filesystem::is_directory(output, error)) {
    return file_error(output,
                      "is not an existing directory; -o names a .safetensors file or a directory");
  }
  std::vector<OutputFile> files;
  std::string summary;
  for (const TensorEntry& entry : results_of(input.cases.front())) {
    const std::string name = entry.name.substr(input.cases.front().prefix.size()) + ".npy";
    const Result<Bytes> preamble = npy_preamble(entry.type, entry.shape);
    if (!preamble) return file_error(output, preamble.status().message());
    const std::string path = format("{}{}{}", output, output.ends_with('/') ? "" : "/", name);
    Result<OutputFile> file = OutputFile::create(path);
    if (!file) return file.status();
    if (Status status = file->append(*preamble); !status.ok()) return status;
    files.push_back(std::move(*file));
    if (!summary.empty()) summary += ", ";
    summary += path;
  }
  return std::unique_ptr<ResultWriter>(std::make_unique<NpyResults>(std::move(files), summary));
}

}  // namespace

Result<std::unique_ptr<ResultWriter>> create_writer(const std::string& output,
                                                    const RunInput& input) {
  if (input.source.is_input(output)) {
    return file_error(output, "is the input; choose another output");
  }
  return output.ends_with(".safetensors") ? create_safetensors(output, input)
                                          : create_npy(output, input);
}

}  // namespace tilewise::cli
