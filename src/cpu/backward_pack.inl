// Copies of operands in the order the micro-kernel reads them, converted to words:
//   rows    (rows, row_words)                 left operand, summed along the head dim
//   lanes   (rows / kPanel, row_words, kPanel)  right operand with the rows in the lanes
//   panels  (dim / kPanel, rows / kPair, kPanel) right operand summed along the rows
// Everything a copy holds beyond its matrix is 0, and nothing beyond a row's end is read.
namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE::backward {

// Rows of a matrix in the caller's memory; element x of row r is at offsets[r] + x.
struct Source {
  const void* data;
  DType dtype;
  int64_t dim;
  const int64_t* offsets;
};

// A tensor's rows for one head: those of all query heads of the group, or the keys of a kv head.
struct HeadRows {
  BackwardTensor tensor;
  DType dtype;
  int64_t dim, origin;
  GroupedRows rows;

  TILEWISE_HD Source source(int64_t row, int count, int64_t* offsets) const {
    for (int i = 0; i < count; ++i) offsets[i] = origin + rows.offset(row + i);
    return {tensor.data, dtype, dim, offsets};
  }
};
TILEWISE_HD HeadRows query_rows(const BackwardParams& p, const BackwardHead& h,
                                const BackwardTensor& t, int64_t dim) {
  const int64_t origin = h.sequence.batch * t.batch_stride + h.sequence.q_start * t.seqlen_stride +
                         h.kv_head * p.group * t.head_stride;
  return {t, p.dtype, dim, origin, {t.seqlen_stride, t.head_stride, p.group}};
}
TILEWISE_HD HeadRows key_rows(const BackwardParams& p, const BackwardHead& h,
                              const BackwardTensor& t, int64_t dim) {
  const int64_t origin = h.sequence.batch * t.batch_stride + h.sequence.k_start * t.seqlen_stride +
                         h.kv_head * t.head_stride;
  return {t, p.dtype, dim, origin, {t.seqlen_stride, 0, 1}};
}

template <DType kType>
struct Typed {};

// Calls f with the dtype as a constant. Pairs exist for bf16 alone.
template <class F>
TILEWISE_HD void with_dtype(DType dtype, const F& f) {
  if constexpr (kPair == 2) {
    f(Typed<DType::kBf16>{});
  } else {
    if (dtype == DType::kFp32) f(Typed<DType::kFp32>{});
    if (dtype == DType::kFp16) f(Typed<DType::kFp16>{});
    if (dtype == DType::kBf16) f(Typed<DType::kBf16>{});
  }
}

// Elements [x, x + kLanes) of a row as fp32, 0 past its end.
template <DType kType>
TILEWISE_HD Vec load_values(const Source& s, int row, int64_t x) {
  const int64_t element = s.offsets[row] + x;
  if (x + kLanes <= s.dim) return load_elements(s.data, element, kType);
  alignas(64) float values[kLanes] = {};
  for (int64_t i = 0; i < s.dim - x; ++i) values[i] = load_element(s.data, element + i, kType);
  return Simd::load(values);
}

// The same for words [x, x + kLanes) along the row; the bits of pairs are those in memory.
template <DType kType>
TILEWISE_HD Vec load_row_words(const Source& s, int row, int64_t x) {
  if constexpr (kPair == 1) {
    return load_values<kType>(s, row, x);
  } else {
    const uint16_t* from = static_cast<const uint16_t*>(s.data) + s.offsets[row] + 2 * x;
    if (2 * (x + kLanes) <= s.dim) return Simd::load(reinterpret_cast<const float*>(from));
    alignas(64) uint16_t values[2 * kLanes] = {};
    for (int64_t i = 0; i < s.dim - 2 * x; ++i) values[i] = from[i];
    return Simd::load(reinterpret_cast<const float*>(values));
  }
}

TILEWISE_HD void store_word_bits(Word* to, Vec bits) {
  Simd::store(reinterpret_cast<float*>(to), bits);
}

template <DType kType>
void pack_rows(const Source& s, int rows, int padded_rows, int64_t row_words, Word* to) {
  for (int r = 0; r < padded_rows; ++r, to += row_words) {
    for (int64_t x = 0; x < row_words; x += kLanes) {
      store_word_bits(to + x, r < rows ? load_row_words<kType>(s, r, x) : Simd::zero());
    }
  }
}

// After pack_panels(), whose sequential reads bring the rows into the cache.
template <DType kType>
void pack_lanes(const Source& s, int rows, int64_t row_words, Word* to) {
  for (int r = 0; r < rows; r += kLanes) {
    Word* panel = to + r / kPanel * kPanel * row_words + r % kPanel;
    const bool whole = r + kLanes <= rows;
    for (int64_t x = 0; x < row_words; x += kLanes) {
      Vec square[kLanes];
      if (whole) {
        TILEWISE_UNROLL for (int i = 0; i < kLanes; ++i) {
          square[i] = load_row_words<kType>(s, r + i, x);
        }
      } else {
        TILEWISE_UNROLL for (int i = 0; i < kLanes; ++i) {
          square[i] = r + i < rows ? load_row_words<kType>(s, r + i, x) : Simd::zero();
        }
      }
      Simd::transpose(square);
      TILEWISE_UNROLL for (int i = 0; i < kLanes; ++i) {
        store_word_bits(panel + (x + i) * kPanel, square[i]);
      }
    }
  }
}

// Returns whether all elements are finite.
template <DType kType, class S = Simd>
bool pack_panels(const Source& s, int rows, int padded_rows, Word* to, int64_t panel_stride) {
  Vec zeros = Simd::zero();  // x * 0 summed: NaN once any x is not finite
  for (int r = 0; r < padded_rows; r += kPair, to += kPanel) {
    for (int64_t x = 0; x < s.dim; x += kLanes) {
      Word* at = to + x / kPanel * panel_stride + x % kPanel;
      const Vec first = r < rows ? load_values<kType>(s, r, x) : Simd::zero();
      zeros = Simd::fma(first, Simd::zero(), zeros);
      if constexpr (kPair == 2) {
        const Vec second = r + 1 < rows ? load_values<kType>(s, r + 1, x) : Simd::zero();
        zeros = Simd::fma(second, Simd::zero(), zeros);
        S::store_words(at, S::pair(first, second));
      } else {
        store_word_bits(at, first);
      }
    }
  }
  return Simd::all(Simd::equal(zeros, zeros));
}

// Elements [x, x + kLanes) of a row, as many as it has.
TILEWISE_HD void store_values(const Source& to, int row, int64_t x, Vec values) {
  void* data = const_cast<void*>(to.data);
  const int64_t element = to.offsets[row] + x;
  if (x + kLanes <= to.dim) return store_elements(data, element, to.dtype, values);
  alignas(64) float tail[kLanes];
  Simd::store(tail, values);
  for (int64_t i = 0; i < to.dim - x; ++i) store_element(data, element + i, to.dtype, tail[i]);
}

// `rows` rows of `width` values times `factor`, rounded into the caller's memory.
inline void store_rows(const Source& to, int rows, const float* from, int64_t width, float factor) {
  const Vec by = Simd::set(factor);
  for (int r = 0; r < rows; ++r, from += width) {
    for (int64_t x = 0; x < width; x += kLanes) {
      store_values(to, r, x, Simd::mul(Simd::load(from + x), by));
    }
  }
}

// A hidden pair has weight 0, but 0 times a non-finite element is NaN: a right operand that holds
// one gets zeros in its place, and the pairs that do see it get their products added one by one.
inline void zero_nonfinite(Word* words, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = __builtin_bit_cast(uint32_t, words[i]);
    if constexpr (kPair == 2) {
      if ((bits & 0x7f80u) == 0x7f80u) bits &= 0xffff0000u;
      if ((bits & 0x7f800000u) == 0x7f800000u) bits &= 0xffffu;
    } else {
      if ((bits & 0x7f800000u) == 0x7f800000u) bits = 0;
    }
    words[i] = __builtin_bit_cast(Word, bits);
  }
}

// Calls add(row, x, value) for every non-finite element.
template <class F>
void for_each_nonfinite(const Source& s, int rows, const F& add) {
  for (int r = 0; r < rows; ++r) {
    for (int64_t x = 0; x < s.dim; ++x) {
      const float value = load_element(s.data, s.offsets[r] + x, s.dtype);
      if ((bits_of_float(value) & 0x7f800000u) == 0x7f800000u) add(r, x, value);
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE::backward
