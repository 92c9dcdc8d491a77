// Status and Result: how src/ reports failure. No exceptions, no prints; every message carries the
// offending field and value.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/format.h"

namespace tilewise {

// The values are those of tilewise_status in tilewise.h.
enum class StatusCode : int {
  kOk = 0,
  kInvalidArgument = 1,  // a field or pointer is wrong
  kUnsupported = 2,      // well-formed, but no kernel here computes it
  kOverflow = 3,         // sizes do not fit into 64 bits
  kWorkspace = 4,        // workspace null, too small or misaligned
  kOutOfMemory = 5,      // host memory for a plan could not be had
  kDevice = 6,           // the device or its driver failed
  kInternal = 7,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

template <class... Args>
Status invalid_argument(std::string_view pattern, const Args&... args) {
  return {StatusCode::kInvalidArgument, format(pattern, args...)};
}
template <class... Args>
Status unsupported(std::string_view pattern, const Args&... args) {
  return {StatusCode::kUnsupported, format(pattern, args...)};
}

// A value, or the status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace tilewise
