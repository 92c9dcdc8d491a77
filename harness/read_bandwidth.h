// How fast one core reads memory: what decode, which reads every key and value once, is measured
// against.
#pragma once

#include <cstddef>

namespace tilewise::harness {

// Reads `bytes` (rounded down to a multiple of 1 KiB) at `data`, aligned to 64, once, as four
// streams side by side, and returns GB/s (1e9) of this thread's CPU time. Four streams, because one
// leaves the memory's pages and the core's miss buffers partly idle (docs/tuning/cpu.md).
double read_bandwidth(const void* data, size_t bytes);

// The same with 1, 2, 4 or 8 streams; others count as 4.
double read_bandwidth(const void* data, size_t bytes, int streams);

}  // namespace tilewise::harness
