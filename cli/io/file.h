// Files as the command line needs them: an input that is read in pieces, and an output that appears
// under its name only when it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cli/io/element.h"
#include "core/status.h"

namespace tilewise::cli {

// Messages of this file start with the path.
Status file_error(const std::string& path, const std::string& what);

class InputFile {
 public:
  static Result<InputFile> open(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  // Exactly out.size() bytes from `offset`, or an error: the file may have been cut short since.
  Status read(uint64_t offset, std::span<std::byte> out) const;
  // True when `path` names this very file.
  bool is_same_file(const std::string& path) const;

 private:
  InputFile(std::string path, int descriptor, uint64_t size)
      : path_(std::move(path)), descriptor_(descriptor), size_(size) {}
  std::string path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

// Written under a temporary name in the directory of `path`; commit() renames it. Without commit
// the destructor removes it, and whatever was at `path` stays as it was.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  Status append(std::span<const std::byte> bytes);
  Status commit();

 private:
  OutputFile(std::string path, std::unique_ptr<std::string> temporary, int descriptor)
      : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}
  std::string path_;
  std::unique_ptr<std::string> temporary_;  // does not move: remove_unfinished_files() reads it
  int descriptor_ = -1;
};

// For a process that is about to end without its destructors: removes the temporary of every
// OutputFile. May be called by a signal handler.
void remove_unfinished_files();

}  // namespace tilewise::cli
