#include "harness/read_bandwidth.h"

#include <time.h>

#include <cstdint>

namespace tilewise::harness {
namespace {

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Sixteen 32-bit lanes; the compiler splits them where registers are narrower. xor, so that no
// value in memory (subnormals, NaN) can change the speed.
using Line __attribute__((vector_size(64))) = uint32_t;

template <int kStreams>
__attribute__((always_inline)) inline uint32_t read_streams(const Line* data, size_t lines) {
  const size_t length = lines / kStreams;
  Line sum[8] = {};
  for (size_t i = 0; i + 2 <= length; i += 2) {
    _Pragma("GCC unroll 8") for (int s = 0; s < kStreams; ++s) {
      sum[s % 4 * 2] ^= data[s * length + i];
      sum[s % 4 * 2 + 1] ^= data[s * length + i + 1];
    }
  }
  for (int s = 1; s < 8; ++s) sum[0] ^= sum[s];
  uint32_t folded = 0;
  for (int lane = 0; lane < 16; ++lane) folded ^= sum[0][lane];
  return folded;
}

__attribute__((always_inline)) inline uint32_t read_lines(const Line* data, size_t lines,
                                                          int streams) {
  switch (streams) {
    case 1:
      return read_streams<1>(data, lines);
    case 2:
      return read_streams<2>(data, lines);
    case 8:
      return read_streams<8>(data, lines);
    default:
      return read_streams<4>(data, lines);
  }
}

uint32_t read_baseline(const Line* data, size_t lines, int streams) {
  return read_lines(data, lines, streams);
}
#if defined(__x86_64__)
__attribute__((target("avx2"))) uint32_t read_avx2(const Line* data, size_t lines, int streams) {
  return read_lines(data, lines, streams);
}
__attribute__((target("avx512f"))) uint32_t read_avx512(const Line* data, size_t lines,
                                                        int streams) {
  return read_lines(data, lines, streams);
}
#endif

uint32_t read_widest(const Line* data, size_t lines, int streams) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return read_avx512(data, lines, streams);
  if (__builtin_cpu_supports("avx2")) return read_avx2(data, lines, streams);
#endif
  return read_baseline(data, lines, streams);
}

}  // namespace

double read_bandwidth(const void* data, size_t bytes, int streams) {
  const size_t lines = bytes / 1024 * 16;
  const double start = thread_seconds();
  const volatile uint32_t sink = read_widest(static_cast<const Line*>(data), lines, streams);
  static_cast<void>(sink);
  const double seconds = thread_seconds() - start;
  return static_cast<double>(lines) * 64e-9 / seconds;
}

double read_bandwidth(const void* data, size_t bytes) { return read_bandwidth(data, bytes, 4); }

}  // namespace tilewise::harness
