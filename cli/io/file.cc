#include "cli/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace tilewise::cli {
namespace {

Status system_error(const std::string& path, const char* what) {
  return file_error(path, format("{}: {}", what, std::strerror(errno)));
}

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// What remove_unfinished_files() removes. A command writes at most five files at a time; of more
// than these it would leave some behind.
std::array<std::atomic<const char*>, 16> g_unfinished;
static_assert(std::atomic<const char*>::is_always_lock_free);

void replace_unfinished(const char* old_name, const char* new_name) {
  for (std::atomic<const char*>& name : g_unfinished) {
    const char* expected = old_name;
    if (name.compare_exchange_strong(expected, new_name)) return;
  }
}

}  // namespace

Status file_error(const std::string& path, const std::string& what) {
  return {StatusCode::kInvalidArgument, path + ": " + what};
}

Result<InputFile> InputFile::open(const std::string& path) {
  // O_NONBLOCK: a pipe without a writer would hang here instead of being refused below.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return system_error(path, "cannot be read");
  InputFile file(path, descriptor, 0);
  struct stat info {};
  if (fstat(descriptor, &info) != 0) return system_error(path, "cannot be read");
  if (S_ISDIR(info.st_mode)) return file_error(path, "is a directory");
  if (!S_ISREG(info.st_mode)) return file_error(path, "is not a regular file");
  file.size_ = static_cast<uint64_t>(info.st_size);
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

Status InputFile::read(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(path_, "cannot be read");
    if (got == 0) return file_error(path_, format("ends at byte {}, expected more", offset));
    offset += static_cast<uint64_t>(got);
    out = out.subspan(static_cast<size_t>(got));
  }
  return {};
}

bool InputFile::is_same_file(const std::string& path) const {
  struct stat mine {
  }, other{};
  return fstat(descriptor_, &mine) == 0 && stat(path.c_str(), &other) == 0 &&
         mine.st_dev == other.st_dev && mine.st_ino == other.st_ino;
}

Result<OutputFile> OutputFile::create(const std::string& path) {
  const std::string directory = directory_of(path);
  struct stat info {};
  if (stat(directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return file_error(path, format("the directory {} does not exist", quote(directory)));
  }
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return file_error(path, S_ISDIR(info.st_mode) ? "is a directory" : "is not a regular file");
  }
  auto temporary = std::make_unique<std::string>(path + ".XXXXXX");
  const int descriptor = mkostemp(temporary->data(), O_CLOEXEC);
  if (descriptor < 0) return system_error(path, "cannot be written");
  replace_unfinished(nullptr, temporary->c_str());
  return OutputFile(path, std::move(temporary), descriptor);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (temporary_ == nullptr) return;
  unlink(temporary_->c_str());
  replace_unfinished(temporary_->c_str(), nullptr);
}

Status OutputFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write(descriptor_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return system_error(path_, "cannot be written");
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return {};
}

Status OutputFile::commit() {
  // mkstemp made it readable by its owner only; a new file has what umask leaves of 0666.
  const mode_t mask = umask(0);
  umask(mask);
  if (fchmod(descriptor_, 0666 & ~mask) != 0 || close(std::exchange(descriptor_, -1)) != 0 ||
      rename(temporary_->c_str(), path_.c_str()) != 0) {
    return system_error(path_, "cannot be written");
  }
  replace_unfinished(temporary_->c_str(), nullptr);
  temporary_.reset();
  return {};
}

void remove_unfinished_files() {
  for (const std::atomic<const char*>& name : g_unfinished) {
    if (const char* path = name.load(); path != nullptr) unlink(path);
  }
}

}  // namespace tilewise::cli
