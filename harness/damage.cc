// Tensors: what a call may not have done to memory.
#include <algorithm>
#include <cstring>

#include "core/format.h"
#include "harness/buffers.h"

namespace tilewise::harness {
namespace {

bool is_poison(const std::byte* from, int64_t bytes) {
  return std::all_of(from, from + bytes,
                     [](std::byte b) { return b == std::byte{Buffer::kPoison}; });
}

uint64_t checksum(const std::byte* data, std::size_t bytes) {
  uint64_t hash = 0x9E3779B97F4A7C15u;
  for (std::size_t i = 0; i < bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + i, std::min<std::size_t>(8, bytes - i));
    hash = (hash ^ word) * 0xBF58476D1CE4E5B9u;
    hash ^= hash >> 29;
  }
  return hash;
}

template <class F>
void for_each_row(const Extents& e, const F& f) {
  for (int64_t b = 0; b < e.batch; ++b) {
    for (int64_t s = 0; s < e.seqlen; ++s) {
      for (int64_t h = 0; h < e.heads; ++h) f(b, s, h);
    }
  }
}

bool is_input(TensorId t, Direction direction) {
  return direction == Direction::kForward ? t <= TensorId::kV : t <= TensorId::kDo;
}

constexpr TensorId kAllTensors[] = {TensorId::kQ,  TensorId::kK,  TensorId::kV,  TensorId::kO,
                                    TensorId::kDo, TensorId::kDq, TensorId::kDk, TensorId::kDv};

}  // namespace

void Tensors::poison_outputs(Direction direction) {
  for (const TensorId t : kAllTensors) {
    if (has(t) && is_output(t, direction)) view(t).buffer->poison();
  }
  if (direction == Direction::kForward) lse_.poison();
}

void Tensors::seal_inputs(Direction direction) {
  for (const TensorId t : kAllTensors) {
    if (!has(t) || !is_input(t, direction)) continue;
    view(t).sealed = checksum(view(t).buffer->data(), view(t).buffer->bytes());
  }
  sealed_lse_ = checksum(lse_.data(), lse_.bytes());
}

// Bytes between the rows of all tensors that share the buffer of t.
std::optional<std::string> Tensors::gap_damage(TensorId t) const {
  const Buffer& buffer = *view(t).buffer;
  std::vector<std::pair<int64_t, int64_t>> rows;  // bytes from the start of the buffer
  for (const TensorId other : kAllTensors) {
    if (view(other).buffer != view(t).buffer) continue;
    const Extents e = view(other).extents;
    for_each_row(e, [&](int64_t b, int64_t s, int64_t h) {
      const int64_t begin = element(other, b, s, h) - buffer.data();
      rows.emplace_back(begin, begin + e.dim * size_of(problem().dtype));
    });
  }
  std::sort(rows.begin(), rows.end());
  int64_t end = 0;
  for (const auto& [row_begin, row_end] : rows) {
    if (row_begin > end && !is_poison(buffer.data() + end, row_begin - end)) {
      return format("{}: bytes [{}, {}) between its rows were written", name_of(t), end, row_begin);
    }
    end = std::max(end, row_end);
  }
  return std::nullopt;
}

std::optional<std::string> Tensors::unwritten(TensorId t) const {
  std::optional<std::string> found;
  const Extents e = view(t).extents;
  const int size = size_of(problem().dtype);
  for_each_row(e, [&](int64_t b, int64_t s, int64_t h) {
    if (found) return;
    const std::byte* row = element(t, b, s, h);
    for (int64_t x = 0; x < e.dim && !found; ++x) {
      if (!is_poison(row + x * size, size)) continue;
      found = format("{} at b {} s {} h {} x {} was not written", name_of(t), b, s, h, x);
    }
  });
  return found;
}

std::optional<std::string> Tensors::damage(Direction direction) const {
  for (const TensorId t : kAllTensors) {
    if (!has(t)) continue;
    const View& v = view(t);
    if (!v.buffer->guards_intact()) return format("{}: a guard beside it was written", name_of(t));
    if (is_input(t, direction) && v.sealed != checksum(v.buffer->data(), v.buffer->bytes())) {
      return format("{}: an input was changed", name_of(t));
    }
    if (auto d = gap_damage(t)) return d;
    if (!is_output(t, direction)) continue;
    if (auto d = unwritten(t)) return d;
  }
  if (direction == Direction::kBackward && sealed_lse_ != checksum(lse_.data(), lse_.bytes())) {
    return std::string("lse: an input was changed");
  }
  const std::pair<const char*, const Buffer*> others[] = {{"lse", &lse_},
                                                          {"alibi_slopes", &alibi_},
                                                          {"cu_seqlens_q", &cu_seqlens_q_},
                                                          {"cu_seqlens_k", &cu_seqlens_k_},
                                                          {"workspace", &workspace_}};
  for (const auto& [name, buffer] : others) {
    if (!buffer->guards_intact()) return format("{}: a guard beside it was written", name);
  }
  return std::nullopt;
}

std::optional<std::string> Tensors::written(Direction direction) const {
  for (const TensorId t : kAllTensors) {
    if (!has(t) || !is_output(t, direction)) continue;
    if (!is_poison(view(t).buffer->data(), static_cast<int64_t>(view(t).buffer->bytes()))) {
      return format("{} was written by a call that failed", name_of(t));
    }
  }
  if (direction == Direction::kForward &&
      !is_poison(lse_.data(), static_cast<int64_t>(lse_.bytes()))) {
    return std::string("lse was written by a call that failed");
  }
  if (!is_poison(workspace_.data(), static_cast<int64_t>(workspace_.bytes()))) {
    return std::string("workspace was written by a call that failed");
  }
  return std::nullopt;
}

}  // namespace tilewise::harness
