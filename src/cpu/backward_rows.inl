// The two passes over query rows: delta before the super-blocks, the sum of their dq after them.
namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE::backward {

// rowsum(dO o O) in 16 sums over columns x mod 16, joined as a tree: one order for every width.
inline void delta(const BackwardParams& p, const BackwardHead& head, int64_t row_begin,
                  int64_t row_end) {
  constexpr int kSums = 16;
  const HeadRows o = query_rows(p, head, p.o, p.head_dim_v);
  const HeadRows do_ = query_rows(p, head, p.do_, p.head_dim_v);
  with_dtype(p.dtype, [&]<DType kType>(Typed<kType>) {
    for (int64_t row = row_begin; row < row_end; ++row) {
      int64_t o_offset, do_offset;
      const Source left = o.source(row, 1, &o_offset), right = do_.source(row, 1, &do_offset);
      Vec sums[kSums / kLanes];
      for (Vec& sum : sums) sum = Simd::zero();
      for (int64_t x = 0; x < p.head_dim_v; x += kSums) {
        for (int i = 0; i < kSums / kLanes; ++i) {
          if (x + i * kLanes >= p.head_dim_v) continue;
          sums[i] = Simd::fma(load_values<kType>(left, 0, x + i * kLanes),
                              load_values<kType>(right, 0, x + i * kLanes), sums[i]);
        }
      }
      alignas(64) float total[kSums];
      for (int i = 0; i < kSums / kLanes; ++i) Simd::store(total + i * kLanes, sums[i]);
      for (int half = kSums / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) total[i] += total[i + half];
      }
      head.delta[row] = total[0];
    }
  });
}

// dq = scale * the sum of the super-blocks' contributions, in their order.
inline void reduce(const BackwardParams& p, const BackwardReduction& r) {
  const HeadRows dq = query_rows(p, r.head, p.dq, p.head_dim);
  const int64_t width = round_up(p.head_dim, kLanes);
  const int64_t rows = r.head.rows(p.group);
  for (int64_t begin = r.row_begin; begin < r.row_end; begin += kBlockM) {
    const int64_t end = least(begin + kBlockM, rows);
    TileRange seen = p.mask.kv_range(begin / p.group, (end - 1) / p.group + 1, r.head.sequence.n,
                                     r.head.super_block);
    seen.begin = most(seen.begin, r.super_begin);
    seen.end = least(seen.end, r.super_end);
    const float* partials = r.partials - r.super_begin * r.partial_stride;
    for (int64_t row = begin; row < end; ++row) {
      int64_t offset;
      const Source to = dq.source(row, 1, &offset);
      for (int64_t x = 0; x < width; x += kLanes) {
        const int64_t at = row * width + x;
        Vec sum = r.from_sum ? Simd::load(r.sum + at) : Simd::zero();
        for (int64_t super = seen.begin; super < seen.end; ++super) {
          sum = Simd::add(sum, Simd::load(partials + super * r.partial_stride + at));
        }
        if (r.to_sum) {
          Simd::store(r.sum + at, sum);
        } else {
          store_values(to, 0, x, Simd::mul(sum, Simd::set(p.scale)));
        }
      }
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE::backward
