// Tensors: the memory of a case, laid out by its strides and offsets, watched on all sides.
//
// Every tensor lies between guards of 512 elements. Guards, gaps between strided rows and whatever
// a run must write are filled with bytes of 0xFF (NaN in every type), so that a kernel that reads
// or accumulates into them gives itself away; damage() names what was written outside its place,
// left unwritten or, for inputs, changed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/problem.h"

namespace tilewise::harness {

enum class Placement {
  kGuards,       // guards of 512 elements on both sides
  kEndAtPage,    // the last byte is the last one before a page that may not be touched
  kStartAtPage,  // the first byte is the first one after such a page
};

struct BufferOptions {
  Placement placement = Placement::kGuards;
  bool huge_pages = false;  // 2 MiB pages where the system has them (bench)
};

struct Unmap {
  std::size_t length = 0;
  void operator()(std::byte* p) const;
};

// One block of memory with its guards, all of it filled with kPoison. `bytes` may be 0.
class Buffer {
 public:
  static constexpr int kPoison = 0xFF;

  Buffer() = default;
  // data() is aligned to 64 bytes plus `shift` (placement kGuards; the others follow the page).
  Buffer(std::size_t bytes, std::size_t guard_bytes, std::size_t shift,
         const BufferOptions& options);

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  std::span<std::byte> memory() const { return {begin_, end_}; }  // with the guards
  bool guards_intact() const;
  void poison();  // the data, not the guards

 private:
  std::unique_ptr<std::byte, Unmap> mapping_;
  std::byte* begin_ = nullptr;  // what may be touched: guard, data, guard
  std::byte* end_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class Tensors {
 public:
  explicit Tensors(const ProblemCase& c, const BufferOptions& options = {});

  const ProblemCase& problem_case() const { return case_; }
  const AttentionProblem& problem() const { return case_.problem; }

  // Null when the tensor does not belong to the case's direction.
  void* pointer(TensorId t) const;
  // (batch, head, seqlen_q), varlen (head, total_q).
  float* lse() const { return reinterpret_cast<float*>(lse_.data()); }
  // (head), or (batch, head) with alibi_batch_stride() == num_heads; null without alibi.
  float* alibi_slopes() const;
  int64_t alibi_batch_stride() const { return alibi_batch_stride_; }
  // Exactly batch + 1 entries; null unless varlen.
  int32_t* cu_seqlens_q() const;
  int32_t* cu_seqlens_k() const;

  // Poisoned workspace of that size, null when it is 0.
  void* make_workspace(uint64_t bytes, uint64_t align);
  void* workspace() const { return workspace_bytes_ == 0 ? nullptr : workspace_.data(); }
  uint64_t workspace_bytes() const { return workspace_bytes_; }

  // Every buffer with its guards, each once; the workspace too.
  std::vector<std::span<std::byte>> memory() const;

  // Element access by value; of a varlen tensor b is 0 and s counts from the start of all tokens.
  double get(TensorId t, int64_t b, int64_t s, int64_t h, int64_t x) const;
  void set(TensorId t, int64_t b, int64_t s, int64_t h, int64_t x, double value);  // rounds
  void get_row(TensorId t, int64_t b, int64_t s, int64_t h, double* out) const;
  void set_row(TensorId t, int64_t b, int64_t s, int64_t h, const double* values);
  float get_lse(int64_t b, int64_t s, int64_t h) const;  // b, s as in get()

  // The elements in (batch, seqlen, head, dim) order, bit for bit, without gaps: for memcmp.
  std::vector<std::byte> packed(TensorId t) const;
  std::vector<float> packed_lse() const;

  // Makes the outputs of a call of that direction poison again.
  void poison_outputs(Direction direction);
  // Remembers the bytes of what a call of that direction reads; damage() compares.
  void seal_inputs(Direction direction);
  // After a call of that direction: nothing, or one sentence on the first thing that is wrong.
  std::optional<std::string> damage(Direction direction) const;
  // After a refused call: nothing, or the first output that was written nevertheless.
  std::optional<std::string> written(Direction direction) const;

 private:
  struct View {
    std::shared_ptr<Buffer> buffer;  // shared by the tensors of one packed-QKV block
    std::byte* data = nullptr;       // element (0, 0, 0, 0)
    Extents extents;
    Strides strides;
    uint64_t sealed = 0;
  };

  void make_views();
  bool make_packed_qkv(TensorId q, TensorId k, TensorId v);
  void make_lengths();
  void make_alibi();
  bool has(TensorId t) const { return view(t).buffer != nullptr; }
  std::byte* element(TensorId t, int64_t b, int64_t s, int64_t h) const;
  std::optional<std::string> gap_damage(TensorId t) const;
  std::optional<std::string> unwritten(TensorId t) const;
  const View& view(TensorId t) const { return views_[static_cast<int>(t)]; }
  View& view(TensorId t) { return views_[static_cast<int>(t)]; }

  ProblemCase case_;
  BufferOptions options_;
  std::array<View, kNumTensors> views_;
  Buffer lse_, alibi_, cu_seqlens_q_, cu_seqlens_k_, workspace_;
  int64_t alibi_batch_stride_ = 0;
  uint64_t workspace_bytes_ = 0;
  uint64_t sealed_lse_ = 0;
};

// Values as the element type holds them.
double load_element(DType t, const void* p);
void store_element(DType t, void* p, double value);  // round to nearest, ties to even
double round_to(DType t, double value);
double largest_finite(DType t);

}  // namespace tilewise::harness
