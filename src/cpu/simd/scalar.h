// Vector policy without vector instructions: four fp32 lanes as an array. It gives the same bits as
// the others (every multiply-add is one correctly rounded fma), so tests use it as their twin.
#pragma once

#define TILEWISE_ISA_NAMESPACE scalar

#include <cstdint>

#include "core/hd.h"
#include "core/numeric.h"

namespace tilewise::cpu::scalar {

struct Simd {
  static constexpr int kLanes = 4;
  struct Vec {
    float lane[kLanes];
  };
  struct Mask {
    bool lane[kLanes];
  };
  static constexpr int kForwardVecs = 3, kForwardRows = 4;
  static constexpr int kBackwardVecs = 2, kBackwardRows = 6;
  // A word is what one broadcast feeds to mac(): here one fp32 value (a pair of bf16 in
  // avx512bf16.h). Packed operands are rows of words.
  using Word = float;
  using Words = Vec;
  static constexpr int kWordElements = 1;

  template <class F>
  TILEWISE_HD static Vec each(F f) {
    Vec r;
    for (int i = 0; i < kLanes; ++i) r.lane[i] = f(i);
    return r;
  }
  template <class F>
  TILEWISE_HD static Mask test(F f) {
    Mask r;
    for (int i = 0; i < kLanes; ++i) r.lane[i] = f(i);
    return r;
  }

  TILEWISE_HD static void prefetch(const void*) {}
  TILEWISE_HD static Vec zero() { return set(0.0f); }
  TILEWISE_HD static Vec set(float x) {
    return each([=](int) { return x; });
  }
  TILEWISE_HD static Vec broadcast(const float* p) { return set(*p); }
  TILEWISE_HD static Vec load(const float* p) {
    return each([=](int i) { return p[i]; });
  }
  TILEWISE_HD static void store(float* p, Vec v) {
    for (int i = 0; i < kLanes; ++i) p[i] = v.lane[i];
  }
  TILEWISE_HD static Words load_words(const Word* p) { return load(p); }
  TILEWISE_HD static Words broadcast_word(const Word* p) { return broadcast(p); }
  TILEWISE_HD static Vec iota() {
    return each([](int i) { return static_cast<float>(i); });
  }

  TILEWISE_HD static Vec load_fp16(const uint16_t* p) {
    return each([=](int i) { return float_of_fp16(p[i]); });
  }
  TILEWISE_HD static Vec load_bf16(const uint16_t* p) {
    return each([=](int i) { return float_of_bf16(p[i]); });
  }
  TILEWISE_HD static void store_fp16(uint16_t* p, Vec v) {
    for (int i = 0; i < kLanes; ++i) p[i] = fp16_of_float(v.lane[i]);
  }
  TILEWISE_HD static void store_bf16(uint16_t* p, Vec v) {
    for (int i = 0; i < kLanes; ++i) p[i] = bf16_of_float(v.lane[i]);
  }

  TILEWISE_HD static Vec add(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  TILEWISE_HD static Vec sub(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  TILEWISE_HD static Vec mul(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  TILEWISE_HD static Vec div(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  TILEWISE_HD static Vec fma(Vec a, Vec b, Vec c) {  // a*b + c
    return each([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
  }
  TILEWISE_HD static Vec fms(Vec a, Vec b, Vec c) {  // a*b - c
    return each([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], -c.lane[i]); });
  }
  TILEWISE_HD static Vec mac(Words word, Words v, Vec acc) { return fma(word, v, acc); }
  // When either is NaN the result is b.
  TILEWISE_HD static Vec max(Vec a, Vec b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  TILEWISE_HD static Vec abs(Vec a) {
    return each([&](int i) { return __builtin_fabsf(a.lane[i]); });
  }
  TILEWISE_HD static Vec copy_sign(Vec magnitude, Vec sign) {
    return each([&](int i) { return __builtin_copysignf(magnitude.lane[i], sign.lane[i]); });
  }

  // Comparisons are false on NaN.
  TILEWISE_HD static Mask less_equal(Vec a, Vec b) {
    return test([&](int i) { return a.lane[i] <= b.lane[i]; });
  }
  TILEWISE_HD static Mask less(Vec a, Vec b) {
    return test([&](int i) { return a.lane[i] < b.lane[i]; });
  }
  TILEWISE_HD static Mask equal(Vec a, Vec b) {
    return test([&](int i) { return a.lane[i] == b.lane[i]; });
  }
  TILEWISE_HD static Mask both(Mask a, Mask b) {
    return test([&](int i) { return a.lane[i] && b.lane[i]; });
  }
  TILEWISE_HD static Mask either(Mask a, Mask b) {
    return test([&](int i) { return a.lane[i] || b.lane[i]; });
  }
  TILEWISE_HD static bool any(Mask m) {
    bool found = false;
    for (int i = 0; i < kLanes; ++i) found |= m.lane[i];
    return found;
  }
  TILEWISE_HD static bool all(Mask m) {
    bool held = true;
    for (int i = 0; i < kLanes; ++i) held &= m.lane[i];
    return held;
  }
  TILEWISE_HD static Vec select(Mask m, Vec if_set, Vec if_clear) {
    return each([&](int i) { return m.lane[i] ? if_set.lane[i] : if_clear.lane[i]; });
  }

  // x - round(8x) / 8, given t = x + round: see exp2_in_place().
  TILEWISE_HD static Vec exp2_remainder(Vec x, Vec t, Vec round) { return sub(x, sub(t, round)); }
  TILEWISE_HD static Vec exp2_power(Vec t) {
    return each([&](int i) {
      const uint32_t index = bits_of_float(t.lane[i]);
      return float_of_bits(static_cast<uint32_t>(kExp2Table[index & 7]) + (index << 20));
    });
  }
  TILEWISE_HD static Vec split_exponent(Vec x, Vec* exponent) {
    *exponent = each([&](int i) {
      return static_cast<float>(static_cast<int32_t>(bits_of_float(x.lane[i]) - 0x3f400000u) >> 23);
    });
    const Vec e = *exponent;
    return each([&](int i) {
      return float_of_bits(bits_of_float(x.lane[i]) -
                           (static_cast<uint32_t>(static_cast<int32_t>(e.lane[i])) << 23));
    });
  }

  TILEWISE_HD static void transpose(Vec rows[kLanes]) {
    for (int i = 0; i < kLanes; ++i) {
      for (int j = i + 1; j < kLanes; ++j) {
        const float swap = rows[i].lane[j];
        rows[i].lane[j] = rows[j].lane[i];
        rows[j].lane[i] = swap;
      }
    }
  }

  // Two vectors of neighbouring elements of a row, for arithmetic that does not care which lane
  // holds which element as long as all operands agree.
  struct Pair {
    Vec a, b;
  };
  TILEWISE_HD static Pair load_pair_fp32(const float* p) { return {load(p), load(p + kLanes)}; }
  TILEWISE_HD static Pair load_pair_fp16(const uint16_t* p) {
    return {load_fp16(p), load_fp16(p + kLanes)};
  }
  TILEWISE_HD static Pair load_pair_bf16(const uint16_t* p) {
    return {load_bf16(p), load_bf16(p + kLanes)};
  }
  // The first `count` < 2 * kLanes elements; zeros for the others, whose memory is not touched.
  TILEWISE_HD static Pair load_pair_fp32(const float* p, int count) {
    float x[2 * kLanes] = {};
    for (int i = 0; i < count; ++i) x[i] = p[i];
    return load_pair_fp32(x);
  }
  TILEWISE_HD static Pair load_pair_fp16(const uint16_t* p, int count) {
    uint16_t x[2 * kLanes] = {};
    for (int i = 0; i < count; ++i) x[i] = p[i];
    return load_pair_fp16(x);
  }
  TILEWISE_HD static Pair load_pair_bf16(const uint16_t* p, int count) {
    uint16_t x[2 * kLanes] = {};
    for (int i = 0; i < count; ++i) x[i] = p[i];
    return load_pair_bf16(x);
  }
  TILEWISE_HD static Pair in_order_bf16(Pair x) { return x; }

  // Lane i <-> lane i ^ kStep.
  template <int kStep>
  TILEWISE_HD static Vec swap(Vec v) {
    return each([&](int i) { return v.lane[i ^ kStep]; });
  }
  // Stores groups of kCount lanes `step` floats apart.
  template <int kCount>
  TILEWISE_HD static void store_groups(float* p, int64_t step, Vec v) {
    for (int i = 0; i < kLanes; ++i) p[i / kCount * step + i % kCount] = v.lane[i];
  }
  // Lane i of the result is the sum of all lanes of x[i]: neighbours first.
  TILEWISE_HD static Vec sum_lanes(const Vec x[kLanes]) {
    return each(
        [&](int i) { return (x[i].lane[0] + x[i].lane[1]) + (x[i].lane[2] + x[i].lane[3]); });
  }
};

}  // namespace tilewise::cpu::scalar
