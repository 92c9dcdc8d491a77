// Moving q, k, v into the order the tiles read them in, and o back. Inputs become words here: fp32
// whatever their type, or pairs of bf16.
namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

// kLanes words from an element on.
template <class S, DType kType>
TILEWISE_HD Vec load_whole_words(const void* base, int64_t element) {
  if constexpr (S::kWordElements == 2) {
    return S::load_bits(static_cast<const uint16_t*>(base) + element);
  } else {
    return load_elements(base, element, kType);
  }
}

// Words [word, word + kLanes) of a row of `count` elements, zeros beyond its end.
template <class S, DType kType>
TILEWISE_HD Vec load_row_words(const void* base, int64_t row, int word, int count) {
  const int element = word * S::kWordElements;
  if (element + kLanes * S::kWordElements <= count) {
    return load_whole_words<S, kType>(base, row + element);
  }
  if constexpr (S::kWordElements == 2) {
    const uint16_t* p = static_cast<const uint16_t*>(base) + row + element;
    alignas(64) uint16_t rest[2 * kLanes] = {};
    for (int i = 0; element + i < count; ++i) rest[i] = p[i];
    return S::load_bits(rest);
  } else {
    alignas(64) float rest[kLanes] = {};
    for (int i = 0; element + i < count; ++i)
      rest[i] = load_element(base, row + element + i, kType);
    return S::load(rest);
  }
}

// Words [word, word + kLanes) of kLanes rows, zeros where there is no row or no element.
template <DType kType>
void load_edge_tile(Vec* tile, const void* base, const int64_t* at, int rows, int word, int count) {
  for (int r = 0; r < kLanes; ++r) {
    tile[r] = r < rows ? load_row_words<Simd, kType>(base, at[r], word, count) : Simd::zero();
  }
}

// kLanes rows, at element offsets at[r], become columns: out[w * pitch + r] is word w of row r.
// Rows from `rows` on are zeros, and so are the words that round `count` elements up to a multiple
// of kLanes words.
template <DType kType>
TILEWISE_HD void transpose_rows(Word* out, int pitch, const void* base, const int64_t* at, int rows,
                                int count, int words) {
  for (int word = 0; word < words; word += kLanes) {
    Vec tile[kLanes];
    if (rows >= kLanes && (word + kLanes) * Simd::kWordElements <= count) {
      TILEWISE_UNROLL for (int r = 0; r < kLanes; ++r) {
        tile[r] = load_whole_words<Simd, kType>(base, at[r] + word * Simd::kWordElements);
      }
      Simd::transpose(tile);
      TILEWISE_UNROLL for (int r = 0; r < kLanes; ++r) {
        Simd::store(reinterpret_cast<float*>(out + (word + r) * pitch), tile[r]);
      }
    } else {
      load_edge_tile<kType>(tile, base, at, rows, word, count);
      Simd::transpose(tile);
      for (int r = 0; r < kLanes; ++r) {
        Simd::store(reinterpret_cast<float*>(out + (word + r) * pitch), tile[r]);
      }
    }
  }
}

// K rows [0, rows) as panels of kLanes keys: out (ceil(rows / kLanes), words, kLanes).
template <DType kType>
TILEWISE_HD void pack_keys(Word* out, const void* k, int64_t first, int64_t stride, int rows,
                           int head_dim, int words) {
  for (int key = 0; key < rows; key += kLanes, out += words * kLanes) {
    int64_t at[kLanes];
    for (int r = 0; r < kLanes; ++r) at[r] = first + (key + r) * stride;
    transpose_rows<kType>(out, kLanes, k, at, rows - key, head_dim, words);
  }
}

// kLanes elements of row `at` from element x on, zeros beyond `count`.
template <DType kType>
TILEWISE_HD Vec load_values(const void* v, int64_t at, int x, int count) {
  if (x + kLanes <= count) return load_elements(v, at + x, kType);
  alignas(64) float rest[kLanes] = {};
  for (int i = 0; x + i < count; ++i) rest[i] = load_element(v, at + x + i, kType);
  return Simd::load(rest);
}

// Writes word row `pair` of one panel from the values of its keys (one, or two when words are
// pairs along the keys).
template <class S, class Load>
TILEWISE_HD void store_value_words(Word* out, const Load& load) {
  if constexpr (S::kWordElements == 2) {
    const Vec even = load(0);
    const Vec odd = load(1);
    S::store_words(out, S::pair(even, odd));
  } else {
    S::store(out, load(0));
  }
}

// V rows [0, rows) as panels of kLanes columns: out (value_rows / kLanes, block_words, kLanes),
// with zeros for keys up to `padded`. Returns whether every element is finite; one that is not is 0
// in the panel (it must not reach rows that do not see its key: 0 * inf is NaN).
template <DType kType>
TILEWISE_HD bool pack_values(Word* out, const void* v, int64_t first, int64_t stride, int rows,
                             int padded, int head_dim_v, int block_words) {
  constexpr int kWord = Simd::kWordElements, kChains = 4;
  // x * 0 is NaN for an x that is not finite, and stays NaN. One chain of additions would be slower
  // than the copy.
  Vec check[kChains];
  TILEWISE_UNROLL for (int i = 0; i < kChains; ++i) check[i] = Simd::zero();
  for (int x = 0; x < head_dim_v; x += kLanes, out += block_words * kLanes) {
    int key = 0;
    const int together = x + kLanes <= head_dim_v ? rows - kChains * kWord : -1;
    for (; key <= together; key += kChains * kWord) {
      TILEWISE_UNROLL for (int i = 0; i < kChains; ++i) {
        store_value_words<Simd>(out + (key / kWord + i) * kLanes, [&](int j) {
          const int64_t at = first + (key + i * kWord + j) * stride + x;
          const Vec value = load_elements(v, at, kType);
          check[i] = Simd::fma(value, Simd::zero(), check[i]);
          return value;
        });
      }
    }
    for (; key < padded; key += kWord) {
      store_value_words<Simd>(out + key / kWord * kLanes, [&](int j) {
        if (key + j >= rows) return Simd::zero();
        const Vec value = load_values<kType>(v, first + (key + j) * stride, x, head_dim_v);
        check[0] = Simd::fma(value, Simd::zero(), check[0]);
        return value;
      });
    }
  }
  Vec all = check[0];
  TILEWISE_UNROLL for (int i = 1; i < kChains; ++i) all = Simd::add(all, check[i]);
  return Simd::all(Simd::equal(all, all));
}

// The same with a test of every element: for blocks in which pack_values found one not finite.
template <DType kType>
void pack_finite_values(Word* out, const void* v, int64_t first, int64_t stride, int rows,
                        int padded, int head_dim_v, int block_words) {
  for (int x = 0; x < head_dim_v; x += kLanes, out += block_words * kLanes) {
    for (int key = 0; key < padded; key += Simd::kWordElements) {
      store_value_words<Simd>(out + key / Simd::kWordElements * kLanes, [&](int i) {
        if (key + i >= rows) return Simd::zero();
        const Vec value = load_values<kType>(v, first + (key + i) * stride, x, head_dim_v);
        const Vec zero = Simd::mul(value, Simd::zero());
        return Simd::select(Simd::equal(zero, zero), value, Simd::zero());
      });
    }
  }
}

template <DType kType>
void store_edge_tile(void* o, const int64_t* at, const float (*tile)[kLanes], int rows, int x,
                     int count) {
  const int width = count - x < kLanes ? count - x : kLanes;
  for (int r = 0; r < rows && r < kLanes; ++r) {
    for (int i = 0; i < width; ++i) store_element(o, at[r] + x + i, kType, tile[r][i]);
  }
}

// Rows [0, rows) of o from columns: o row r, element x is columns[x * pitch + r] * factor[r], or 0
// where the sum of weights is 0.
template <DType kType>
TILEWISE_HD void store_rows(void* o, const int64_t* at, const float* columns, int pitch, Vec factor,
                            Mask empty, int rows, int count) {
  for (int x = 0; x < count; x += kLanes) {
    Vec tile[kLanes];
    TILEWISE_UNROLL for (int i = 0; i < kLanes; ++i) {
      const Vec column = Simd::load(columns + (x + i) * pitch);
      tile[i] = Simd::select(empty, Simd::zero(), Simd::mul(column, factor));
    }
    Simd::transpose(tile);
    if (rows >= kLanes && x + kLanes <= count) {
      TILEWISE_UNROLL for (int r = 0; r < kLanes; ++r) store_elements(o, at[r] + x, kType, tile[r]);
    } else {
      alignas(64) float edge[kLanes][kLanes];
      TILEWISE_UNROLL for (int r = 0; r < kLanes; ++r) Simd::store(edge[r], tile[r]);
      store_edge_tile<kType>(o, at, edge, rows, x, count);
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
