// Joins the partial results of a kv head's chunks. Included once per instruction set.
namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE {

// Reference -> weight of each part, in place; returns the lse and the factor 1/sum of the rows.
TILEWISE_HD void weigh_parts(const DecodeParts& parts, float* lse, float* inverse) {
  for (int r = 0; r < kDecodeRows; r += kLanes) {
    RowSoftmax total;
    const auto part = [&](int64_t c) {
      return reinterpret_cast<DecodePartial*>(reinterpret_cast<char*>(parts.first) +
                                              c * parts.stride);
    };
    for (int64_t c = 0; c < parts.count; ++c) total.update({Simd::load(part(c)->reference + r)});
    total.sum = RowOps::zero();
    for (int64_t c = 0; c < parts.count; ++c) {
      const RowVec reference{Simd::load(part(c)->reference + r)};
      const RowVec weight = RowOps::exp2(reference - total.shift());
      total.sum = total.sum + weight * RowVec{Simd::load(part(c)->sum + r)};
      Simd::store(part(c)->reference + r, weight.v);
    }
    RowVec log;
    Simd::store(inverse + r, total.finalize(&log).v);
    Simd::store(lse + r, log.v);
  }
}

template <DType kType>
TILEWISE_HD void store_row(const DecodeParams& p, const DecodeParts& parts, int r, float inverse,
                           char* out) {
  using E = Elements<kType>;
  const int rows = padded_decode_rows(parts.sequence.n.q * p.group);
  for (int x = 0; x * kPairElements < p.head_dim_v; ++x) {
    Vec a = Simd::zero(), b = Simd::zero();
    if (inverse != 0.0f) {  // an empty row is 0 whatever its parts hold
      const char* part = reinterpret_cast<const char*>(parts.first);
      for (int64_t c = 0; c < parts.count; ++c, part += parts.stride) {
        const float* weight = reinterpret_cast<const DecodePartial*>(part)->reference + r;
        const float* o = reinterpret_cast<const float*>(part + sizeof(DecodePartial)) +
                         (x * rows + r) * kPairElements;
        a = Simd::fma(Simd::broadcast(weight), Simd::load(o), a);
        b = Simd::fma(Simd::broadcast(weight), Simd::load(o + kLanes), b);
      }
      a = Simd::mul(a, Simd::set(inverse));
      b = Simd::mul(b, Simd::set(inverse));
    }
    const int left = p.head_dim_v - x * kPairElements;
    E::store(out + x * E::kPairBytes, {a, b}, left < kPairElements ? left : kPairElements);
  }
}

void decode_combine(const DecodeParams& p, const DecodeParts& parts) {
  float lse[kDecodeRows], inverse[kDecodeRows];
  weigh_parts(parts, lse, inverse);
  const Sequence& at = parts.sequence;
  const int64_t head = parts.kv_head * p.group;
  const GroupedRows rows{p.o.seqlen_stride, p.o.head_stride, p.group};
  const int64_t base =
      at.batch * p.o.batch_stride + at.q_start * p.o.seqlen_stride + head * p.o.head_stride;
  for (int r = 0; r < at.n.q * p.group; ++r) {
    char* out = static_cast<char*>(p.o.data) + size_of(p.dtype) * (base + rows.offset(r));
    if (p.dtype == DType::kFp32) store_row<DType::kFp32>(p, parts, r, inverse[r], out);
    if (p.dtype == DType::kFp16) store_row<DType::kFp16>(p, parts, r, inverse[r], out);
    if (p.dtype == DType::kBf16) store_row<DType::kBf16>(p, parts, r, inverse[r], out);
    if (p.lse != nullptr) {
      p.lse[at.batch * p.lse_batch_stride + (head + r % p.group) * p.lse_head_stride + at.q_start +
            r / p.group] = lse[r];
    }
  }
}

extern const DecodeKernel kDecodeKernel = {decode_chunk, decode_combine};

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE
