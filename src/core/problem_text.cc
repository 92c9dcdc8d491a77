// Parses the one-line text form of problems and cases. Grammar: docs/conventions.md.
#include <charconv>
#include <string>

#include "core/problem.h"

namespace tilewise {
namespace {

constexpr DType kDTypes[] = {DType::kFp16, DType::kBf16, DType::kFp32, DType::kFp64};

template <class T>
bool read_number(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

// "3,0,7" -> numbers; false when an item is not a number or does not fit.
template <class T>
bool read_list(std::string_view text, std::vector<T>* values) {
  values->clear();
  while (true) {
    const size_t comma = text.find(',');
    T value{};
    if (!read_number(text.substr(0, comma), &value)) return false;
    values->push_back(value);
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

bool take_prefix(std::string_view* text, std::string_view prefix) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

class Parser {
 public:
  explicit Parser(bool case_words) : case_words_(case_words) {}

  Result<ProblemCase> parse(std::string_view line) {
    line = line.substr(0, line.find('#'));
    bool first = true;
    while (true) {
      const size_t begin = line.find_first_not_of(" \t\r\n");
      if (begin == std::string_view::npos) break;
      line.remove_prefix(begin);
      const size_t length = line.find_first_of(" \t\r\n");
      const std::string_view token = line.substr(0, length);
      line.remove_prefix(token.size());
      if (Status s = first ? read_dtype(token) : read_token(token); !s.ok()) return s;
      first = false;
    }
    if (first) return invalid_argument("empty problem line; expected e.g. \"{}\"", kExample);
    if (Status s = finish(); !s.ok()) return s;
    return case_;
  }

 private:
  static constexpr const char* kExample = "bf16 b2 sq4096 h16 hk4 d128 causal";

  Status read_dtype(std::string_view token) {
    for (const DType t : kDTypes) {
      if (token == name_of(t)) {
        problem().dtype = t;
        return {};
      }
    }
    return bad(token, "a problem starts with fp16, bf16, fp32 or fp64");
  }

  Status read_token(std::string_view token) {
    const size_t colon = token.find(':');
    const std::string_view word = token.substr(0, colon);
    const std::string_view value =
        colon == std::string_view::npos ? std::string_view() : token.substr(colon + 1);
    if (colon != std::string_view::npos) return read_option(token, word, value);
    if (word == "causal") return flag(token, "causal", &causal_);
    if (word == "topleft") return flag(token, "topleft", &topleft_);
    if (word == "alibi") return flag(token, "alibi", &problem().alibi);
    if (word == "deterministic") return flag(token, "deterministic", &problem().deterministic);
    if (word == "backward") return flag(token, "backward", &backward_);
    return read_size(token);
  }

  Status read_size(std::string_view token) {
    struct Size {
      const char* name;
      int64_t* value;
    };
    AttentionProblem& p = problem();
    // Longer names first: "sq" and "sk" before nothing, "hk" before "h", "dv" before "d".
    const Size sizes[] = {{"sq", &p.seqlen_q}, {"sk", &p.seqlen_k},   {"hk", &p.num_heads_kv},
                          {"h", &p.num_heads}, {"dv", &p.head_dim_v}, {"d", &p.head_dim},
                          {"b", &p.batch}};
    for (const Size& size : sizes) {
      std::string_view digits = token;
      if (!take_prefix(&digits, size.name) || digits.empty()) continue;
      if (digits[0] != '-' && (digits[0] < '0' || digits[0] > '9')) continue;
      if (Status s = once(token, size.name); !s.ok()) return s;
      if (!read_number(digits, size.value)) return bad(token, "expected a whole number below 2^63");
      return {};
    }
    return bad(token, "unknown word");
  }

  Status read_option(std::string_view token, std::string_view word, std::string_view value) {
    if (word == "varlen") return read_varlen(token, value);
    if (word == "window") return read_window(token, value);
    if (word == "scale") {
      problem().has_softmax_scale = true;
      return read_float(token, word, value, &problem().softmax_scale);
    }
    if (word == "softcap") return read_float(token, word, value, &problem().softcap);
    if (word == "layout") return read_layout(token, value);
    if (word == "stride") return read_stride(token, value);
    if (word == "offset" || word == "data" || word == "seed") {
      if (!case_words_) return bad(token, "a word of a test case, not of a problem");
      if (word == "offset") return read_offset(token, value);
      if (Status s = once(token, word); !s.ok()) return s;
      if (word == "data") {
        case_.data = value;
        return value.empty() ? bad(token, "expected a data family") : Status();
      }
      return read_number(value, &case_.seed) ? Status() : bad(token, "expected a whole number");
    }
    return bad(token, "unknown word");
  }

  Status read_varlen(std::string_view token, std::string_view value) {
    if (Status s = once(token, "varlen"); !s.ok()) return s;
    AttentionProblem& p = problem();
    p.varlen = true;
    const size_t colon = value.find(':');
    std::string_view head = value.substr(0, colon);
    std::string_view tail = colon == std::string_view::npos ? "" : value.substr(colon + 1);
    if (take_prefix(&head, "q=")) {
      if (take_prefix(&tail, "k=") && read_lengths(head, &case_.lengths_q) &&
          read_lengths(tail, &case_.lengths_k) &&
          case_.lengths_q.size() == case_.lengths_k.size()) {
        return {};
      }
      return bad(token, "expected varlen:q=3,0,7:k=5,2,7 with as many lengths for q as for k");
    }
    std::vector<int64_t> total, longest;
    const size_t split = tail.find(':');
    std::string_view totals = tail.substr(0, split);
    std::string_view maxima = split == std::string_view::npos ? "" : tail.substr(split + 1);
    if (take_prefix(&head, "b=") && read_number(head, &p.batch) && take_prefix(&totals, "total=") &&
        read_list(totals, &total) && total.size() == 2 && take_prefix(&maxima, "max=") &&
        read_list(maxima, &longest) && longest.size() == 2) {
      p.total_q = total[0];
      p.total_k = total[1];
      p.max_seqlen_q = longest[0];
      p.max_seqlen_k = longest[1];
      summary_ = true;
      return {};
    }
    return bad(token, "expected varlen:q=3,0,7:k=5,2,7 or varlen:b=3:total=10,14:max=7,7");
  }

  // Of no sequences at all: "q=:k=".
  static bool read_lengths(std::string_view text, std::vector<int32_t>* lengths) {
    if (text.empty()) return true;
    if (!read_list(text, lengths)) return false;
    for (const int32_t n : *lengths) {
      if (n < 0) return false;
    }
    return true;
  }

  Status read_window(std::string_view token, std::string_view value) {
    if (Status s = once(token, "window"); !s.ok()) return s;
    std::vector<int32_t> bounds;
    if (!read_list(value, &bounds) || bounds.size() != 2) {
      return bad(token, "expected window:L,R with -1 for unbounded");
    }
    problem().mask.window_left = bounds[0];
    problem().mask.window_right = bounds[1];
    return {};
  }

  Status read_float(std::string_view token, std::string_view word, std::string_view value,
                    float* out) {
    if (Status s = once(token, word); !s.ok()) return s;
    return read_number(value, out) ? Status() : bad(token, "expected a number");
  }

  Status read_layout(std::string_view token, std::string_view value) {
    if (Status s = once(token, "layout"); !s.ok()) return s;
    for (int i = 0; i < kNumLayouts; ++i) {
      if (value == name_of(static_cast<Layout>(i))) {
        layout_ = static_cast<Layout>(i);
        return {};
      }
    }
    return bad(token, "the layouts are bshd, bhsd and qkv");
  }

  // "q=..." -> the tensor; *value keeps what follows.
  static int read_tensor(std::string_view* value) {
    for (int t = 0; t < kNumTensors; ++t) {
      std::string_view rest = *value;
      if (take_prefix(&rest, name_of(static_cast<TensorId>(t))) && take_prefix(&rest, "=")) {
        *value = rest;
        return t;
      }
    }
    return -1;
  }

  Status read_stride(std::string_view token, std::string_view value) {
    const int t = read_tensor(&value);
    std::vector<int64_t> strides;
    if (t < 0 || !read_list(value, &strides) || strides.size() != 3) {
      return bad(token, "expected stride:<q|k|v|o|do|dq|dk|dv>=batch,seqlen,head");
    }
    if (Status s = once(token, format("stride:{}", name_of(static_cast<TensorId>(t)))); !s.ok()) {
      return s;
    }
    has_stride_[t] = true;
    strides_[t] = {strides[0], strides[1], strides[2]};
    return {};
  }

  Status read_offset(std::string_view token, std::string_view value) {
    const int t = read_tensor(&value);
    if (t < 0 || !read_number(value, &case_.offsets[t]) || case_.offsets[t] < 0) {
      return bad(token, "expected offset:<q|k|v|o|do|dq|dk|dv>=elements");
    }
    return once(token, format("offset:{}", name_of(static_cast<TensorId>(t))));
  }

  Status finish() {
    AttentionProblem& p = problem();
    if (Status s = finish_sizes(); !s.ok()) return s;
    if (causal_) {
      if (p.mask.window_right > 0) {
        return invalid_argument("causal with window_right {}; it must be 0 or -1",
                                p.mask.window_right);
      }
      if (p.mask.window_right == kUnbounded) p.mask.window_right = 0;
    }
    if (topleft_) p.mask.align = Corner::kTopLeft;
    if (backward_) p.direction = Direction::kBackward;
    set_layout(p, layout_);
    for (int t = 0; t < kNumTensors; ++t) {
      if (has_stride_[t]) p.strides[t] = strides_[t];
    }
    return validate(p);
  }

  Status finish_sizes() {
    AttentionProblem& p = problem();
    if (p.varlen) {
      for (const char* word : {"b", "sq", "sk"}) {
        if (was_seen(word)) return invalid_argument("\"{}\" beside varlen, which gives it", word);
      }
      if (!summary_) {
        p.batch = static_cast<int64_t>(case_.lengths_q.size());
        count(case_.lengths_q, &p.total_q, &p.max_seqlen_q);
        count(case_.lengths_k, &p.total_k, &p.max_seqlen_k);
      }
    } else {
      for (const char* word : {"b", "sq"}) {
        if (!was_seen(word)) return invalid_argument("problem line has no {}<n>", word);
      }
      if (!was_seen("sk")) p.seqlen_k = p.seqlen_q;
    }
    for (const char* word : {"h", "d"}) {
      if (!was_seen(word)) return invalid_argument("problem line has no {}<n>", word);
    }
    if (!was_seen("hk")) p.num_heads_kv = p.num_heads;
    if (!was_seen("dv")) p.head_dim_v = p.head_dim;
    return {};
  }

  static void count(const std::vector<int32_t>& lengths, int64_t* total, int64_t* longest) {
    for (const int32_t n : lengths) {
      *total += n;
      if (n > *longest) *longest = n;
    }
  }

  AttentionProblem& problem() { return case_.problem; }

  static Status bad(std::string_view token, std::string_view why) {
    return invalid_argument("problem word \"{}\": {}", token, why);
  }
  bool was_seen(std::string_view word) const {
    for (const std::string& s : seen_) {
      if (s == word) return true;
    }
    return false;
  }
  Status once(std::string_view token, std::string_view word) {
    if (was_seen(word)) return bad(token, "given twice");
    seen_.emplace_back(word);
    return {};
  }
  Status flag(std::string_view token, std::string_view word, bool* value) {
    *value = true;
    return once(token, word);
  }

  ProblemCase case_;
  bool case_words_;
  bool causal_ = false, topleft_ = false, backward_ = false, summary_ = false;
  Layout layout_ = Layout::kBshd;
  bool has_stride_[kNumTensors] = {};
  Strides strides_[kNumTensors];
  std::vector<std::string> seen_;
};

}  // namespace

Result<ProblemCase> parse_case(std::string_view line) { return Parser(true).parse(line); }

Result<AttentionProblem> parse_problem(std::string_view line) {
  Result<ProblemCase> parsed = Parser(false).parse(line);
  if (!parsed) return parsed.status();
  return parsed->problem;
}

}  // namespace tilewise
