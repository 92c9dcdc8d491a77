// The verbs of a vector policy as plain functions over arrays, one table per instruction set, so
// that a test compiled without vector flags can compare them. The tables are made by verbs.inl.
#pragma once

#include <cstdint>

namespace tilewise::cpu::simd_test {

// Each works on arrays of kCount elements, a multiple of every lane count.
constexpr int kCount = 16;

enum class Verb {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFma,
  kFms,
  kMac,
  kMax,
  kAbs,
  kCopySign,
  kLess,
  kLessEqual,
  kEqual,
  kBoth,
  kEither,
  kSelect,  // masks as 1 and 0
  kAny,
  kAll,  // of the lanes of one vector, in each lane
  kZero,
  kSet,
  kBroadcast,
  kIota,
  kExp2Power,
  kSplitMantissa,
  kSplitExponent,
  kExp2,
  kExp2Chains,
  kLog2,
  kTanh,
  kNumVerbs
};
constexpr const char* kVerbNames[] = {"add",
                                      "sub",
                                      "mul",
                                      "div",
                                      "fma",
                                      "fms",
                                      "mac",
                                      "max",
                                      "abs",
                                      "copy_sign",
                                      "less",
                                      "less_equal",
                                      "equal",
                                      "both",
                                      "either",
                                      "select",
                                      "any",
                                      "all",
                                      "zero",
                                      "set",
                                      "broadcast",
                                      "iota",
                                      "exp2_power",
                                      "split_exponent: mantissa",
                                      "split_exponent: exponent",
                                      "exp2",
                                      "exp2_in_place<2>",
                                      "log2",
                                      "tanh"};

struct Table {
  const char* isa = nullptr;  // name_of(CpuIsa)
  int lanes = 0;
  void (*apply)(Verb verb, const float* a, const float* b, const float* c, float* out) = nullptr;
  void (*load_fp16)(const uint16_t* in, float* out) = nullptr;
  void (*load_bf16)(const uint16_t* in, float* out) = nullptr;
  void (*store_fp16)(const float* in, uint16_t* out) = nullptr;
  void (*store_bf16)(const float* in, uint16_t* out) = nullptr;
  void (*transpose)(float* square) = nullptr;  // (lanes, lanes), in place
  // Word verbs of avx512bf16; null elsewhere.
  void (*pair)(const float* even, const float* odd, uint32_t* words) = nullptr;
  void (*store_rounded)(const float* in, uint16_t* out) = nullptr;
  void (*mac_words)(const uint32_t* word, const uint32_t* words, float* acc) = nullptr;
};

const Table& scalar_table();
#if defined(TILEWISE_X86)
const Table& avx2_table();
const Table& avx512_table();
const Table& avx512bf16_table();
#endif

}  // namespace tilewise::cpu::simd_test
