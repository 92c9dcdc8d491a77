#include "cli/problems.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "cli/io/element.h"
#include "cli/table.h"
#include "harness/check.h"
#include "harness/data.h"

namespace tilewise::cli {
namespace {

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

// The parser quotes the word it does not know; this adds what the word may have meant.
std::string with_hint(const std::string& message) {
  constexpr std::string_view kBefore = "word \"", kAfter = "\": unknown word";
  const size_t end = message.find(kAfter), begin = message.rfind(kBefore, end);
  if (end == std::string::npos || begin == std::string::npos) return message;
  const std::string token = message.substr(begin + kBefore.size(), end - begin - kBefore.size());
  const std::string word = token.substr(0, token.find(':'));
  const std::string meant =
      nearest(word, {"causal", "topleft", "alibi", "backward", "deterministic", "varlen", "window",
                     "scale", "softcap", "layout", "stride", "offset", "data", "seed"});
  if (!meant.empty()) return message + "; did you mean " + meant + "?";
  return message +
         "; words are b<n> sq<n> sk<n> h<n> hk<n> d<n> dv<n> varlen:… causal window:L,R topleft "
         "scale:x softcap:x alibi layout:… backward deterministic data:… seed:n";
}

Status check_family(const ProblemCase& c) {
  if (harness::is_data_family(c.data)) return {};
  std::vector<std::string> families;
  std::string list;
  for (const std::string_view family : harness::data_families()) {
    families.emplace_back(family);
    list += (list.empty() ? "" : ", ") + std::string(family);
  }
  return invalid_argument("problem word \"data:{}\": the families are {}", c.data, list);
}

Status append_file(const std::string& path, std::vector<ProblemCase>& cases) {
  Result<std::vector<ProblemCase>> read =
      harness::parse_case_file(path == "-" ? "/dev/stdin" : path);
  if (!read) return {read.status().code(), with_hint(read.status().message())};
  for (ProblemCase& c : *read) {
    if (Status status = check_family(c); !status.ok()) return status;
    cases.push_back(std::move(c));
  }
  return {};
}

double available_bytes() {
  std::ifstream in("/proc/meminfo");
  std::string name, unit;
  double kilobytes = 0;
  while (in >> name >> kilobytes) {
    if (name == "MemAvailable:") return kilobytes * 1024;
    std::getline(in, unit);
  }
  return -1;  // unknown
}

double span_of(const AttentionProblem& p, TensorId t) {
  const Extents e = p.extents(t);
  const Strides& s = p.stride(t);
  const auto reach = [](int64_t size, int64_t stride) {
    return size > 1 ? static_cast<double>(size - 1) * static_cast<double>(stride) : 0.0;
  };
  return reach(e.batch, s.batch) + reach(e.seqlen, s.seqlen) + reach(e.heads, s.head) +
         static_cast<double>(e.dim);
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, (word.size() + 1) / 3) + 1;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

Result<ProblemCase> read_case(const std::string& text) {
  Result<ProblemCase> parsed = parse_case(text);
  if (!parsed) return Status(parsed.status().code(), with_hint(parsed.status().message()));
  if (Status status = check_family(*parsed); !status.ok()) return status;
  return parsed;
}

Result<std::vector<ProblemCase>> read_cases(const std::vector<std::string>& arguments) {
  std::vector<ProblemCase> cases;
  std::string words;  // of a problem that was not quoted
  const auto append_problem = [&cases](const std::string& text) -> Status {
    Result<ProblemCase> parsed = read_case(text);
    if (!parsed) return parsed.status();
    cases.push_back(std::move(*parsed));
    return {};
  };
  for (const std::string& argument : arguments) {
    std::error_code error;
    const bool is_file = argument == "-" || std::filesystem::exists(argument, error);
    Status status;
    if (is_file) {
      if (std::filesystem::is_directory(argument, error)) {
        return invalid_argument("{}: is a directory", argument);
      }
      status = append_file(argument, cases);
    } else if (argument.find_first_of(" \t") != std::string::npos) {
      status = append_problem(argument);
    } else if (argument.find('/') != std::string::npos || argument.ends_with(".txt")) {
      status = invalid_argument("{}: no such file", argument);
    } else {
      words += (words.empty() ? "" : " ") + argument;
    }
    if (!status.ok()) return status;
  }
  if (!words.empty()) {
    if (Status status = append_problem(words); !status.ok()) return status;
  }
  if (cases.empty()) return invalid_argument("no problem in {}", arguments.front());
  return cases;
}

Status check_memory(const ProblemCase& c, double extra_bytes) {
  const AttentionProblem& p = c.problem;
  double bytes = static_cast<double>(p.num_rows()) * 8;
  for (int i = 0; i < kNumTensors; ++i) {
    const TensorId t = static_cast<TensorId>(i);
    if (t > TensorId::kO && !p.backward()) break;
    bytes += span_of(p, t) * size_of(p.dtype);
    const Extents e = p.extents(t);
    bytes += extra_bytes * static_cast<double>(e.batch) * static_cast<double>(e.seqlen) *
             static_cast<double>(e.heads) * static_cast<double>(e.dim);
  }
  const double available = available_bytes();
  if (available < 0 || bytes <= available) return {};
  return unsupported("{} needs {} of memory; {} are free", print(c), byte_text(bytes),
                     byte_text(available));
}

}  // namespace tilewise::cli
