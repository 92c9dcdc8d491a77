// Makes the table of one instruction set; included after the kernels' own headers, in a file that
// has the flags of that set and no standard header with inline functions.
#include "verbs.h"

namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {
namespace {

using simd_test::kCount;
using simd_test::Table;
using simd_test::Verb;

Vec mask_value(Mask m) { return Simd::select(m, Simd::set(1.0f), Simd::zero()); }

// mac takes packed words; only where a word is one fp32 value can its operands be written so.
template <class Policy>
Vec mac_of(Vec a, Vec b, Vec c) {
  if constexpr (Policy::kWordElements == 1) {
    return Policy::mac(a, b, c);
  } else {
    return Policy::fma(a, b, c);
  }
}

Vec apply_lanes(Verb verb, const float* pa, Vec a, Vec b, Vec c) {
  Vec exponent;
  switch (verb) {
    case Verb::kAdd:
      return Simd::add(a, b);
    case Verb::kSub:
      return Simd::sub(a, b);
    case Verb::kMul:
      return Simd::mul(a, b);
    case Verb::kDiv:
      return Simd::div(a, b);
    case Verb::kFma:
      return Simd::fma(a, b, c);
    case Verb::kFms:
      return Simd::fms(a, b, c);
    case Verb::kMac:
      return mac_of<Simd>(a, b, c);
    case Verb::kMax:
      return Simd::max(a, b);
    case Verb::kAbs:
      return Simd::abs(a);
    case Verb::kCopySign:
      return Simd::copy_sign(Simd::abs(a), b);
    case Verb::kLess:
      return mask_value(Simd::less(a, b));
    case Verb::kLessEqual:
      return mask_value(Simd::less_equal(a, b));
    case Verb::kEqual:
      return mask_value(Simd::equal(a, b));
    case Verb::kBoth:
      return mask_value(Simd::both(Simd::less(a, b), Simd::less(b, c)));
    case Verb::kEither:
      return mask_value(Simd::either(Simd::less(a, b), Simd::less(b, c)));
    case Verb::kSelect:
      return Simd::select(Simd::less(a, b), b, c);
    case Verb::kAny:
      return Simd::set(Simd::any(Simd::less(a, b)) ? 1.0f : 0.0f);
    case Verb::kAll:
      return Simd::set(Simd::all(Simd::less(a, b)) ? 1.0f : 0.0f);
    case Verb::kZero:
      return Simd::zero();
    case Verb::kSet:
      return Simd::set(*pa);
    case Verb::kBroadcast:
      return Simd::broadcast(pa);
    case Verb::kIota:
      return Simd::iota();
    case Verb::kExp2Power:
      return Simd::exp2_power(a);
    case Verb::kSplitMantissa:
      return Simd::split_exponent(a, &exponent);
    case Verb::kSplitExponent:
      Simd::split_exponent(a, &exponent);
      return exponent;
    case Verb::kExp2:
      return exp2(a);
    case Verb::kExp2Chains: {
      Vec x[2] = {a, b};
      exp2_in_place<2>(x);
      return Simd::sub(x[0], x[1]);
    }
    case Verb::kLog2:
      return log2(a);
    case Verb::kTanh:
      return tanh(a);
    case Verb::kNumVerbs:
      break;
  }
  return a;
}

void apply(Verb verb, const float* a, const float* b, const float* c, float* out) {
  for (int i = 0; i < kCount; i += kLanes) {
    Simd::store(out + i,
                apply_lanes(verb, a + i, Simd::load(a + i), Simd::load(b + i), Simd::load(c + i)));
  }
}

Table make_table(const char* isa) {
  Table t;
  t.isa = isa;
  t.lanes = kLanes;
  t.apply = apply;
  t.load_fp16 = [](const uint16_t* in, float* out) {
    for (int i = 0; i < kCount; i += kLanes) Simd::store(out + i, Simd::load_fp16(in + i));
  };
  t.load_bf16 = [](const uint16_t* in, float* out) {
    for (int i = 0; i < kCount; i += kLanes) Simd::store(out + i, Simd::load_bf16(in + i));
  };
  t.store_fp16 = [](const float* in, uint16_t* out) {
    for (int i = 0; i < kCount; i += kLanes) Simd::store_fp16(out + i, Simd::load(in + i));
  };
  t.store_bf16 = [](const float* in, uint16_t* out) {
    for (int i = 0; i < kCount; i += kLanes) Simd::store_bf16(out + i, Simd::load(in + i));
  };
  t.transpose = [](float* square) {
    Vec rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = Simd::load(square + i * kLanes);
    Simd::transpose(rows);
    for (int i = 0; i < kLanes; ++i) Simd::store(square + i * kLanes, rows[i]);
  };
  return t;
}

}  // namespace
}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
