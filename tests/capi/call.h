// Call: a plan and a run that are right in every way, to be spoiled in one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tilewise/tilewise.h"

namespace tilewise::test {

// Every pointer of a run that is memory of the caller.
enum class Operand { kQ, kK, kV, kO, kDo, kDq, kDk, kDv, kLse, kSlopes, kCuQ, kCuK, kWorkspace };
constexpr int kNumOperands = 13;
const char* name_of(Operand operand);  // as in error messages

struct Kind {
  tilewise_direction direction = TILEWISE_FORWARD;
  bool varlen = false;
  bool alibi = false;
  int32_t dtype = TILEWISE_FP32;

  std::string name() const;
};
// Forward and backward, dense and varlen, without and with alibi.
std::vector<Kind> all_kinds();

class Call {
 public:
  explicit Call(const Kind& kind);
  ~Call() { tilewise_plan_destroy(plan_); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const Kind& kind() const { return kind_; }
  // Those that the direction takes, optional ones included.
  std::vector<Operand> operands() const;
  bool is_output(Operand operand) const;  // the workspace is one

  // What will be passed.
  tilewise_problem problem = TILEWISE_PROBLEM_INIT;
  tilewise_plan_options options = TILEWISE_PLAN_OPTIONS_INIT;
  tilewise_forward_params forward = TILEWISE_FORWARD_PARAMS_INIT;
  tilewise_backward_params backward = TILEWISE_BACKWARD_PARAMS_INIT;

  void* block(Operand operand) const { return arena_.get() + offsets_[static_cast<int>(operand)]; }
  size_t block_bytes(Operand operand) const { return sizes_[static_cast<int>(operand)]; }
  int32_t* cu_seqlens(Operand operand) { return static_cast<int32_t*>(block(operand)); }
  void set_pointer(Operand operand, void* pointer);
  uint64_t& workspace_bytes() {
    return kind_.direction == TILEWISE_FORWARD ? forward.workspace_bytes : backward.workspace_bytes;
  }
  int64_t& alibi_batch_stride() {
    return kind_.direction == TILEWISE_FORWARD ? forward.alibi_batch_stride
                                               : backward.alibi_batch_stride;
  }
  void*& stream() { return kind_.direction == TILEWISE_FORWARD ? forward.stream : backward.stream; }
  const tilewise_thread_pool*& pool() {
    return kind_.direction == TILEWISE_FORWARD ? forward.pool : backward.pool;
  }

  tilewise_status create();  // replaces the plan
  const tilewise_plan* plan() const { return plan_; }
  uint64_t workspace_needed() const { return workspace_needed_; }
  tilewise_status run();

  // Fills outputs with 0xA5 and the rest with small values, and points everything at its block
  // again.
  void reset();
  // All memory as it was when snapshot() was called.
  void snapshot();
  bool untouched() const;
  // After a good run: no output still is 0xA5 from end to end.
  bool outputs_written() const;

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  size_t size_of_block(Operand operand) const;

  Kind kind_;
  tilewise_plan* plan_ = nullptr;
  uint64_t workspace_needed_ = 0;
  std::unique_ptr<std::byte, Free> arena_;
  size_t arena_bytes_ = 0;
  size_t offsets_[kNumOperands] = {};
  size_t sizes_[kNumOperands] = {};
  std::vector<std::byte> snapshot_;
};

}  // namespace tilewise::test
