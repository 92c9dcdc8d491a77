#include "cli/words.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>
#include <sstream>

#include "cli/table.h"
#include "cli/terminal.h"

namespace tilewise::cli {
namespace {

// "<a>.tokens" for a prefix that begins with "<a>."; the longest such a.
const std::string* metadata_for(const Metadata& metadata, const std::string& prefix,
                                const std::string& field) {
  for (size_t end = prefix.size(); end != std::string::npos && end > 0;
       end = prefix.rfind('.', end - 1)) {
    const size_t length = prefix[end - 1] == '.' ? end - 1 : end;
    const auto found = metadata.find(prefix.substr(0, length) + "." + field);
    if (found != metadata.end()) return &found->second;
  }
  const auto found = metadata.find(field);
  return found == metadata.end() ? nullptr : &found->second;
}

std::vector<std::string> split(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// A word in its own right: letters only, and long enough to mean something.
bool is_word(const std::string& token) {
  constexpr size_t kShortest = 5;
  return token.size() >= kShortest && std::all_of(token.begin(), token.end(), [](char c) {
           return std::isalpha(static_cast<unsigned char>(c)) != 0;
         });
}

std::string printable(const std::string& token) {
  std::string out;
  for (const char c : token) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) out += c;
  }
  return out.substr(0, 24);
}

// Word pieces ("tran", "##quil") joined again, the query in brackets.
std::string surroundings(const AttentionRow& row) {
  constexpr size_t kAround = 7;
  const size_t begin = row.query < kAround ? 0 : row.query - kAround;
  const size_t end = std::min(row.tokens.size(), row.query + kAround + 1);
  std::string text = begin > 0 ? "…" : "";
  for (size_t i = begin; i < end; ++i) {
    std::string token = printable(row.tokens[i]);
    const bool piece = token.starts_with("##");
    if (piece) token = token.substr(2);
    if (!text.empty() && !piece) text += ' ';
    text += i == row.query ? coloured("[" + token + "]", Colour::kBold) : token;
  }
  return text + (end < row.tokens.size() ? " …" : "");
}

}  // namespace

std::vector<std::string> tokens_of(const Metadata& metadata, const RunCase& c) {
  const AttentionProblem& p = c.problem();
  if (p.varlen || p.batch != 1) return {};
  const std::string* text = metadata_for(metadata, c.prefix, "tokens");
  if (text == nullptr) return {};
  std::vector<std::string> tokens = split(*text);
  const int64_t count = static_cast<int64_t>(tokens.size());
  if (count != p.seqlen_q || count != p.seqlen_k) return {};
  return tokens;
}

AttentionRow find_row(const Metadata& metadata, const RunCase& c, const harness::Tensors& tensors) {
  AttentionRow best;
  const AttentionProblem& p = c.problem();
  const std::vector<std::string> tokens = tokens_of(metadata, c);
  constexpr size_t kLongest = 2048;  // tokens; the search takes their square
  if (tokens.empty() || tokens.size() > kLongest || p.softcap != 0 || p.alibi) return best;
  const Lengths lengths{p.seqlen_q, p.seqlen_k};
  const int64_t group = p.num_heads / p.num_heads_kv;
  std::vector<double> q(static_cast<size_t>(p.head_dim)), k(q), weights(tokens.size());
  for (int64_t h = 0; h < p.num_heads; ++h) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (!is_word(tokens[i])) continue;
      tensors.get_row(TensorId::kQ, 0, static_cast<int64_t>(i), h, q.data());
      const double lse = static_cast<double>(tensors.get_lse(0, static_cast<int64_t>(i), h));
      double interest = 0, top = 0;
      for (size_t j = 0; j < tokens.size(); ++j) {
        weights[j] = 0;
        if (!p.mask.visible(static_cast<int64_t>(i), static_cast<int64_t>(j), lengths)) continue;
        tensors.get_row(TensorId::kK, 0, static_cast<int64_t>(j), h / group, k.data());
        const double score = p.scale() * std::inner_product(q.begin(), q.end(), k.begin(), 0.0);
        weights[j] = std::exp(score - lse);
        const size_t apart = i > j ? i - j : j - i;
        if (tokens[j] == tokens[i] || !is_word(tokens[j])) continue;
        // Neighbours are the easy answer, and one key alone makes a dull picture.
        interest += (apart <= 2 ? 0.25 : 1.0) * std::min(weights[j], 0.4);
        top = std::max(top, weights[j]);
      }
      if (!(top > 0.1) || !(interest > best.interest)) continue;
      best.interest = interest;
      best.query = i;
      best.weights = weights;
      best.head = to_text(h);
    }
  }
  if (best.interest == 0) return best;
  best.tokens = tokens;
  best.case_label = c.label;
  // The file may name its heads: those kept of a larger model.
  if (const std::string* heads = metadata_for(metadata, c.prefix, "heads"); heads != nullptr) {
    const std::vector<std::string> names = split(*heads);
    const size_t at = static_cast<size_t>(std::stoll(best.head));
    if (names.size() == static_cast<size_t>(p.num_heads)) best.head = printable(names[at]);
  }
  return best;
}

std::string row_in_words(const AttentionRow& row) {
  constexpr size_t kShown = 6, kBar = 40;
  std::vector<size_t> order(row.weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const size_t shown = std::min(kShown, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown), order.end(),
                    [&row](size_t a, size_t b) { return row.weights[a] > row.weights[b]; });
  std::string text = format("In {}, head {}, \"{}\" attends to:\n  {}\n\n", row.case_label,
                            row.head, printable(row.tokens[row.query]), surroundings(row));
  size_t width = 0;
  double rest = 1;
  for (size_t i = 0; i < shown; ++i)
    width = std::max(width, printable(row.tokens[order[i]]).size());
  for (size_t i = 0; i < shown; ++i) {
    const double weight = row.weights[order[i]];
    rest -= weight;
    const size_t bar = static_cast<size_t>(std::lround(std::clamp(weight, 0.0, 1.0) * kBar));
    const std::string word = printable(row.tokens[order[i]]);
    text += "  " + word + std::string(width - word.size(), ' ') + "  " + fixed(weight, 3) + "  " +
            std::string(bar, '#') + "\n";
  }
  return text + format("  the other {} keys together: {}\n", row.weights.size() - shown,
                       fixed(std::max(0.0, rest), 3));
}

}  // namespace tilewise::cli
