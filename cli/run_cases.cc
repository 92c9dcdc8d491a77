// From tensors to problems: prefixes, shapes, lengths, scale, golden values.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "cli/problems.h"
#include "cli/run_input.h"

namespace tilewise::cli {
namespace {

std::string label_of(const std::string& prefix) {
  const size_t end = prefix.find_last_not_of("./_-:");
  return prefix.empty() ? "(no prefix)"
                        : prefix.substr(0, end == std::string::npos ? prefix.size() : end + 1);
}

std::string shown(const TensorEntry& t) {
  return format("{} {} {}", quote(t.name), name_of(t.type), shape_text(t.shape));
}

// Prefixes with q, k and v. Two of the three look like a case with one tensor forgotten.
Result<std::vector<std::string>> prefixes_of(const TensorSource& source) {
  std::map<std::string, std::string> found;  // prefix -> which of q, k, v are there
  for (const TensorEntry& t : source.tensors) {
    if (t.name.empty() || t.name.ends_with("cu_seqlens_q") || t.name.ends_with("cu_seqlens_k")) {
      continue;
    }
    const char last = t.name.back();
    if (last == 'q' || last == 'k' || last == 'v') {
      found[t.name.substr(0, t.name.size() - 1)] += last;
    }
  }
  std::vector<std::string> prefixes;
  for (const auto& [prefix, letters] : found) {
    if (letters.size() == 3) prefixes.push_back(prefix);
    if (letters.size() != 2) continue;
    for (const char c : {'q', 'k', 'v'}) {
      if (letters.find(c) == std::string::npos) {
        return invalid_argument("{}: tensor {} is missing; {} and {} are there", source.name,
                                quote(prefix + c), quote(prefix + letters[0]),
                                quote(prefix + letters[1]));
      }
    }
  }
  if (prefixes.empty()) {
    std::string names;
    for (size_t i = 0; i < std::min<size_t>(source.tensors.size(), 8); ++i) {
      names += (i == 0 ? "" : ", ") + quote(source.tensors[i].name);
    }
    return invalid_argument(
        "{}: no case: needs tensors <prefix>q, <prefix>k and <prefix>v, has {}{}", source.name,
        names.empty() ? "none" : names, source.tensors.size() > 8 ? ", …" : "");
  }
  std::sort(prefixes.begin(), prefixes.end(), natural_less);
  return prefixes;
}

Status keep_chosen(const std::vector<std::string>& wanted, const TensorSource& source,
                   std::vector<std::string>& prefixes) {
  if (wanted.empty()) return {};
  std::set<std::string> kept;
  for (const std::string& prefix : wanted) {
    const auto found = std::find_if(
        prefixes.begin(), prefixes.end(),
        [&prefix](const std::string& p) { return p == prefix || label_of(p) == prefix; });
    if (found == prefixes.end()) {
      std::string list;
      for (const std::string& p : prefixes) list += (list.empty() ? "" : ", ") + quote(p);
      return invalid_argument("--prefix is {}; the cases of {} are {}", quote(prefix), source.name,
                              list);
    }
    kept.insert(*found);
  }
  std::erase_if(prefixes, [&kept](const std::string& p) { return !kept.contains(p); });
  return {};
}

// Lengths from cumulative lengths.
Result<std::vector<int32_t>> lengths_of(const TensorSource& source, const TensorEntry& t,
                                        int64_t total) {
  const auto refuse = [&](const std::string& why) {
    return invalid_argument("{}: tensor {}: {}", source.name, quote(t.name), why);
  };
  if (t.shape.size() != 1 || t.shape[0] < 1) {
    return refuse(format("shape {}, expected (batch + 1,)", shape_text(t.shape)));
  }
  const Result<Bytes> bytes = source.read(t);
  if (!bytes) return bytes.status();
  const Result<std::vector<int32_t>> ends = read_int32(*bytes, t.type);
  if (!ends) return refuse(ends.status().message());
  if (ends->front() != 0) return refuse(format("begins with {}, expected 0", ends->front()));
  if (ends->back() != total)
    return refuse(format("ends with {}, but there are {} tokens", ends->back(), total));
  std::vector<int32_t> lengths;
  for (size_t i = 1; i < ends->size(); ++i) {
    if ((*ends)[i] < (*ends)[i - 1]) {
      return refuse(
          format("entry {} is {}, less than {} before it", i, (*ends)[i], (*ends)[i - 1]));
    }
    lengths.push_back((*ends)[i] - (*ends)[i - 1]);
  }
  return lengths;
}

std::string list_text(const std::vector<int32_t>& lengths) {
  std::string text;
  for (const int32_t n : lengths) {
    if (!text.empty()) text += ',';
    text += to_text(static_cast<int64_t>(n));
  }
  return text;
}

class CaseFinder {
 public:
  CaseFinder(const TensorSource& source, const RunArguments& arguments, const RunOptions& options)
      : source_(source), arguments_(arguments), options_(options) {}

  // `more_words`: beyond those of the command line.
  Result<RunCase> find(const std::string& prefix, const std::string& more_words) {
    RunCase c;
    c.prefix = prefix;
    c.label = label_of(prefix) + (more_words.empty() ? "" : " " + more_words);
    c.q = source_.find(prefix + "q");
    c.k = source_.find(prefix + "k");
    c.v = source_.find(prefix + "v");
    c.do_ = source_.find(prefix + "do");
    c.alibi_slopes = source_.find(prefix + "alibi_slopes");
    if (Status status = check_types(c); !status.ok()) return status;
    Result<std::string> sizes = size_words(c);
    if (!sizes) return sizes.status();
    std::string line =
        std::string(dtype_word(c)) + " " + *sizes + " " + arguments_.words + " " + more_words;
    const bool wants_backward = arguments_.options.problem.backward();
    if (wants_backward && c.do_ == nullptr) {
      return refuse(c, format("backward needs tensor {}", quote(prefix + "do")));
    }
    if (c.do_ != nullptr && !wants_backward) line += " backward";
    if (!arguments_.options.problem.has_softmax_scale) line += scale_word(c);
    // Tensors has slopes for each batch when the seed of its case is odd.
    if (c.alibi_slopes != nullptr && c.alibi_slopes->shape.size() == 2) line += " seed:1";
    Result<ProblemCase> parsed = parse_case(line);
    if (!parsed) return refuse(c, parsed.status().message());
    c.problem_case = std::move(*parsed);
    if (Status status = check_shapes(c); !status.ok()) return status;
    return c;
  }

 private:
  Status refuse(const RunCase& c, const std::string& why) const {
    return invalid_argument("{}: case {}: {}", source_.name, quote(c.prefix), why);
  }

  std::string_view dtype_word(const RunCase& c) const {
    return options_.dtype.empty() ? std::string_view(name_of(c.file_dtype)) : options_.dtype;
  }

  Status check_types(RunCase& c) const {
    if (!dtype_of(c.q->type, c.file_dtype)) {
      return refuse(c, format("{} is none of F16, BF16, F32 and F64", shown(*c.q)));
    }
    for (const TensorEntry* t : {c.k, c.v, static_cast<const TensorEntry*>(c.do_)}) {
      if (t != nullptr && t->type != c.q->type) {
        return refuse(c, format("{} and {} differ in type", shown(*c.q), shown(*t)));
      }
    }
    return {};
  }

  // "b1 sq77 sk77 h6 hk6 d32 dv32", or "varlen:q=…:k=… h6 …"
  Result<std::string> size_words(const RunCase& c) const {
    const TensorEntry* cu_q = source_.find(c.prefix + "cu_seqlens_q");
    const TensorEntry* cu_k = source_.find(c.prefix + "cu_seqlens_k");
    const bool varlen = cu_q != nullptr || cu_k != nullptr;
    if (varlen && (cu_q == nullptr || cu_k == nullptr)) {
      return refuse(c,
                    format("tensor {} is missing beside the other one",
                           quote(c.prefix + (cu_q == nullptr ? "cu_seqlens_q" : "cu_seqlens_k"))));
    }
    const size_t rank = varlen ? 3 : 4;
    for (const TensorEntry* t : {c.q, c.k, c.v}) {
      if (t->shape.size() == rank) continue;
      if (!varlen && t->shape.size() == 3) {
        return refuse(
            c,
            format("{}: expected (batch, seqlen, heads, dim); (total, heads, dim) needs "
                   "tensors {} and {}",
                   shown(*t), quote(c.prefix + "cu_seqlens_q"), quote(c.prefix + "cu_seqlens_k")));
      }
      return refuse(c, format("{}: expected {}", shown(*t),
                              varlen ? "(total, heads, dim)" : "(batch, seqlen, heads, dim)"));
    }
    const auto sizes = [rank](const TensorEntry& t) {
      return t.shape.data() + (rank - 3);
    };  // (seqlen, heads, dim)
    const int64_t *q = sizes(*c.q), *k = sizes(*c.k), *v = sizes(*c.v);
    if (!varlen && (c.k->shape[0] != c.q->shape[0] || c.v->shape[0] != c.q->shape[0])) {
      return refuse(c,
                    format("{}, {} and {} differ in batch", shown(*c.q), shown(*c.k), shown(*c.v)));
    }
    if (v[0] != k[0] || v[1] != k[1]) {
      return refuse(c, format("{} and {} differ in seqlen or heads", shown(*c.k), shown(*c.v)));
    }
    if (k[2] != q[2]) return refuse(c, format("{} and {} differ in dim", shown(*c.q), shown(*c.k)));
    const std::string heads = format("h{} hk{} d{} dv{}", q[1], k[1], q[2], v[2]);
    if (!varlen) return format("b{} sq{} sk{} {}", c.q->shape[0], q[0], k[0], heads);
    const Result<std::vector<int32_t>> lengths_q = lengths_of(source_, *cu_q, q[0]);
    if (!lengths_q) return lengths_q.status();
    const Result<std::vector<int32_t>> lengths_k = lengths_of(source_, *cu_k, k[0]);
    if (!lengths_k) return lengths_k.status();
    if (lengths_q->size() != lengths_k->size()) {
      return refuse(c, format("{} and {} differ in length", shown(*cu_q), shown(*cu_k)));
    }
    return format("varlen:q={}:k={} {}", list_text(*lengths_q), list_text(*lengths_k), heads);
  }

  // The file's own scale, when it has one that is not the default.
  std::string scale_word(const RunCase& c) const {
    const auto found = source_.metadata.find("scale");
    if (found == source_.metadata.end()) return {};
    double scale = 0;
    const std::string& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), scale);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(scale))
      return {};
    const double usual = 1 / std::sqrt(static_cast<double>(c.q->shape.back()));
    if (std::fabs(scale - usual) <= 1e-6 * usual) return {};
    return format(" scale:{}", static_cast<float>(scale));
  }

  Status check_shapes(const RunCase& c) const {
    const AttentionProblem& p = c.problem();
    if (c.do_ != nullptr) {
      std::vector<int64_t> shape = c.q->shape;
      shape.back() = p.head_dim_v;
      if (c.do_->shape != shape) {
        return refuse(c,
                      format("{}: expected the shape of o, {}", shown(*c.do_), shape_text(shape)));
      }
    }
    if (!p.alibi) return {};
    if (c.alibi_slopes == nullptr) {
      return refuse(c, format("alibi needs tensor {}", quote(c.prefix + "alibi_slopes")));
    }
    const std::vector<int64_t> one = {p.num_heads}, each = {p.batch, p.num_heads};
    if (c.alibi_slopes->type != ElementType::kF32 ||
        (c.alibi_slopes->shape != one && c.alibi_slopes->shape != each)) {
      return refuse(c, format("{}: expected F32 {} or {}", shown(*c.alibi_slopes), shape_text(one),
                              shape_text(each)));
    }
    return {};
  }

  const TensorSource& source_;
  const RunArguments& arguments_;
  const RunOptions& options_;
};

// Golden values of the case's mask, with shapes checked.
Status attach_golden(const TensorSource& source, RunCase& c) {
  const AttentionProblem& p = c.problem();
  const bool full = p.mask.window_left == kUnbounded && p.mask.window_right == kUnbounded;
  const bool causal =
      p.mask.window_left == kUnbounded && p.mask.window_right == 0 &&
      (p.mask.align == Corner::kBottomRight || (!p.varlen && p.seqlen_q == p.seqlen_k));
  if ((!full && !causal) || p.softcap != 0 || p.alibi) return {};
  const std::string suffix = full ? "" : "_causal";
  c.golden_o = source.find(c.prefix + "o" + suffix);
  c.golden_lse = source.find(c.prefix + "lse" + suffix);
  std::vector<int64_t> o_shape = c.q->shape, lse_shape = {p.num_heads, p.total_q};
  o_shape.back() = p.head_dim_v;
  if (!p.varlen) lse_shape = {p.batch, p.num_heads, p.seqlen_q};
  const auto check = [&](const TensorEntry* t, const std::vector<int64_t>& shape) -> Status {
    DType dtype{};
    if (t == nullptr || (dtype_of(t->type, dtype) && t->shape == shape)) return {};
    return invalid_argument("{}: golden tensor {}: expected a floating-point type and shape {}",
                            source.name, shown(*t), shape_text(shape));
  };
  if (Status status = check(c.golden_o, o_shape); !status.ok()) return status;
  return check(c.golden_lse, lse_shape);
}

std::string scale_note(const TensorSource& source, const RunCase& c) {
  const AttentionProblem& p = c.problem();
  const std::string value =
      p.dtype == DType::kFp64 ? to_text(p.scale()) : to_text(static_cast<float>(p.scale()));
  const auto found = source.metadata.find("scale");
  if (!p.has_softmax_scale) {
    return format("scale 1/sqrt({}) = {}{}", p.head_dim, value,
                  found == source.metadata.end() ? "" : ", as in the file's metadata");
  }
  return format("scale {}", value);
}

}  // namespace

Result<RunInput> find_cases(TensorSource source, const RunArguments& arguments,
                            const RunOptions& options) {
  RunInput input;
  input.source = std::move(source);
  const TensorSource& from = input.source;
  Result<std::vector<std::string>> prefixes = prefixes_of(from);
  if (!prefixes) return prefixes.status();
  if (Status status = keep_chosen(options.prefixes, from, *prefixes); !status.ok()) return status;

  CaseFinder finder(from, arguments, options);
  const AttentionProblem& asked = arguments.options.problem;
  const bool plain = asked.mask.window_left == kUnbounded &&
                     asked.mask.window_right == kUnbounded && asked.softcap == 0 && !asked.alibi;
  for (const std::string& prefix : *prefixes) {
    std::vector<std::string> variants = {""};
    const bool has_causal =
        from.find(prefix + "o_causal") != nullptr || from.find(prefix + "lse_causal") != nullptr;
    if (options.check && plain && has_causal) variants.push_back("causal");
    for (const std::string& words : variants) {
      Result<RunCase> c = finder.find(prefix, words);
      if (!c) return c.status();
      c->written = words.empty();
      // A scale of the user's own has no golden values.
      if (options.check && !asked.has_softmax_scale) {
        if (Status status = attach_golden(from, *c); !status.ok()) return status;
      }
      input.cases.push_back(std::move(*c));
    }
  }
  input.scale_note = scale_note(from, input.cases.front());
  const bool any_golden = std::any_of(input.cases.begin(), input.cases.end(), [](const RunCase& c) {
    return c.golden_o != nullptr || c.golden_lse != nullptr;
  });
  if (!any_golden && std::any_of(input.cases.begin(), input.cases.end(), [&from](const RunCase& c) {
        return from.find(c.prefix + "o") != nullptr || from.find(c.prefix + "lse") != nullptr;
      })) {
    input.golden_note = "the file's golden values are for other options and were not compared";
  }
  return input;
}

}  // namespace tilewise::cli
