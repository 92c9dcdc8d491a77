// Rows in the lanes of a vector, for core/online_softmax.h. Included once per instruction set.
namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

struct RowVec {
  Vec v;
};
TILEWISE_HD RowVec operator+(RowVec a, RowVec b) { return {Simd::add(a.v, b.v)}; }
TILEWISE_HD RowVec operator-(RowVec a, RowVec b) { return {Simd::sub(a.v, b.v)}; }
TILEWISE_HD RowVec operator*(RowVec a, RowVec b) { return {Simd::mul(a.v, b.v)}; }
TILEWISE_HD RowVec operator/(RowVec a, RowVec b) { return {Simd::div(a.v, b.v)}; }

struct RowOps {
  TILEWISE_HD static RowVec set(double x) { return {Simd::set(static_cast<float>(x))}; }
  TILEWISE_HD static RowVec zero() { return {Simd::zero()}; }
  TILEWISE_HD static RowVec negative_infinity() { return {Simd::set(-__builtin_inff())}; }
  TILEWISE_HD static RowVec max(RowVec a, RowVec b) { return {Simd::max(a.v, b.v)}; }
  TILEWISE_HD static RowVec exp2(RowVec x) { return {TILEWISE_ISA_NAMESPACE::exp2(x.v)}; }
  // log2() of vector_math.inl takes the bits of a NaN for a number.
  TILEWISE_HD static RowVec log2(RowVec x) {
    return {Simd::add(TILEWISE_ISA_NAMESPACE::log2(x.v), Simd::sub(x.v, x.v))};
  }
  TILEWISE_HD static RowVec select_empty(RowVec x, RowVec if_so, RowVec if_not) {
    return {Simd::select(Simd::equal(x.v, negative_infinity().v), if_so.v, if_not.v)};
  }
  TILEWISE_HD static RowVec select_zero(RowVec x, RowVec if_so, RowVec if_not) {
    return {Simd::select(Simd::equal(x.v, Simd::zero()), if_so.v, if_not.v)};
  }
};

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
