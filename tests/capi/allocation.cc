#include "tests/capi/allocation.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace tilewise::test {
namespace {
std::atomic<int64_t> allocated{0};
std::atomic<int64_t> live{0};
thread_local int64_t until_failure = -1;

void* allocate(size_t size, size_t align) noexcept {
  if (until_failure >= 0 && until_failure-- == 0) return nullptr;
  void* p = align <= alignof(std::max_align_t)
                ? std::malloc(size == 0 ? 1 : size)
                : std::aligned_alloc(align, (size + align - 1) / align * align);
  if (p != nullptr) live.fetch_add(1, std::memory_order_relaxed);
  return p;
}
void* allocate_or_throw(size_t size, size_t align) {
  void* p = allocate(size, align);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void release(void* p) noexcept {
  if (p != nullptr) live.fetch_sub(1, std::memory_order_relaxed);
  std::free(p);
}
}  // namespace

int64_t allocations() { return allocated.load(); }
int64_t live_objects() { return live.load(); }

FailAllocation::FailAllocation(int64_t nth) { until_failure = nth; }
FailAllocation::~FailAllocation() { until_failure = -1; }
bool FailAllocation::happened() const { return until_failure < 0; }

int64_t resident_bytes() {
  int64_t pages = 0;
  std::FILE* f = std::fopen("/proc/self/statm", "r");
  if (f == nullptr || std::fscanf(f, "%*d %ld", &pages) != 1) std::abort();
  std::fclose(f);
  return pages * sysconf(_SC_PAGESIZE);
}

}  // namespace tilewise::test

// The C library's functions under the names that an interposer may call.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

void* malloc(size_t size) {
  tilewise::test::allocated.fetch_add(1);
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  tilewise::test::allocated.fetch_add(1);
  return __libc_calloc(count, size);
}
void* realloc(void* p, size_t size) {
  tilewise::test::allocated.fetch_add(1);
  return __libc_realloc(p, size);
}
void* aligned_alloc(size_t align, size_t size) {
  tilewise::test::allocated.fetch_add(1);
  return __libc_memalign(align, size);
}
int posix_memalign(void** p, size_t align, size_t size) {
  tilewise::test::allocated.fetch_add(1);
  *p = __libc_memalign(align, size);
  return *p == nullptr ? 12 : 0;  // ENOMEM
}
}

using tilewise::test::allocate;
using tilewise::test::allocate_or_throw;
using tilewise::test::release;

void* operator new(size_t n) { return allocate_or_throw(n, 1); }
void* operator new[](size_t n) { return allocate_or_throw(n, 1); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return allocate(n, 1); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return allocate(n, 1); }
void* operator new(size_t n, std::align_val_t a) { return allocate_or_throw(n, size_t(a)); }
void* operator new[](size_t n, std::align_val_t a) { return allocate_or_throw(n, size_t(a)); }
void* operator new(size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(n, size_t(a));
}
void* operator new[](size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(n, size_t(a));
}
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, size_t) noexcept { release(p); }
void operator delete[](void* p, size_t) noexcept { release(p); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { release(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { release(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { release(p); }
