// TILEWISE_HD: a function that host and device code share.
//
// On the host such a function is always inlined: the files of src/cpu are compiled once per
// instruction set, and an out-of-line copy compiled for AVX-512 could be the one the linker keeps
// for every caller.
#pragma once

#if defined(__CUDACC__)
#define TILEWISE_HD __host__ __device__ __forceinline__
#else
#define TILEWISE_HD inline __attribute__((always_inline))
#endif
