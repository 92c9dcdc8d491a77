// From products to P^T and dS^T: queries in the lanes, one row per key.
//
//   P^T  = exp2(log2e * score - log2e * lse)    [log2e * lse in two parts: see QueryLanes]
//   dS^T = P^T o (V dO^T - delta)            [o (1 - tanh^2) under a softcap]
//
// Blocks in which every pair is visible finish in registers at the end of a tile; the others, and
// every block under a softcap or ALiBi, store the product and finish in a second pass. Both do the
// same operations on an element, so which one runs does not show in the result.
namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE::backward {

// A block of query rows as the passes below see it; arrays of kBlockM lanes.
//
// Where no key carries much weight, lse * log2e is near 11 and log2e * score near 1: their
// difference rounded to fp32 would be 2e-7 of every weight, and lse * log2e as much again for the
// whole row. So an integer near it goes straight into the exponent (exp2_in_place()), and only the
// rest is subtracted.
struct QueryLanes {
  float* lse;        // lse * log2e - whole; +inf in an empty or padding row
  float* lowest;     // whole + kExp2Lowest
  float* round;      // kExp2Round - whole
  float* delta;      // 0 there
  float* key_begin;  // visible keys [key_begin, key_end) of the current block of keys
  float* key_end;
  float* slope;     // ALiBi: times log2e
  float* diagonal;  // ALiBi: key on the row's diagonal, relative to the current block of keys
};

struct BlockBuffers {
  float* p;  // (kBlockN, kBlockM)
  float* ds;
  Word* p_rows;  // (kBlockN, kBlockM / kPair); p and ds themselves when a word is one fp32
  Word* ds_rows;
  Word* ds_keys;  // (kBlockN / kPair, kBlockM)
  float* cap_slope;
};

TILEWISE_HD Vec load_lanes(const float* lanes, int lane) { return Simd::load(lanes + lane); }

// Exponents short of `whole` -> weights.
template <int V>
TILEWISE_HD void weights(const QueryLanes& rows, int lane, Vec* x) {
  exp2_in_place<V>(
      x,
      [&](int n)
          __attribute__((always_inline)) { return load_lanes(rows.lowest, lane + n * kLanes); },
      [&](int n)
          __attribute__((always_inline)) { return load_lanes(rows.round, lane + n * kLanes); });
}

// S is Simd: named through a parameter, because only the sets with pairs have the verbs for them.
template <class S = Simd, int V>
TILEWISE_HD void store_p(const BlockBuffers& out, Vec (&p)[V], int key, int lane) {
  TILEWISE_UNROLL for (int n = 0; n < V; ++n) {
    Simd::store(out.p + key * kBlockM + lane + n * kLanes, p[n]);
    if constexpr (kPair == 2) {
      uint16_t* rows = reinterpret_cast<uint16_t*>(out.p_rows);
      S::store_rounded(rows + key * kBlockM + lane + n * kLanes, p[n]);
    }
  }
}

// dS of the neighbouring keys key, key + 1 (key even).
template <class S = Simd, int V>
TILEWISE_HD void store_ds(const BlockBuffers& out, Vec (&ds)[2][V], int key, int lane) {
  TILEWISE_UNROLL for (int n = 0; n < V; ++n) {
    const int at = key * kBlockM + lane + n * kLanes;
    if constexpr (kPair == 2) {
      uint16_t* rows = reinterpret_cast<uint16_t*>(out.ds_rows);
      S::store_rounded(rows + at, ds[0][n]);
      S::store_rounded(rows + at + kBlockM, ds[1][n]);
      S::store_words(out.ds_keys + key / 2 * kBlockM + lane + n * kLanes,
                     S::pair(ds[0][n], ds[1][n]));
    } else {
      Simd::store(out.ds + at, ds[0][n]);
      Simd::store(out.ds + at + kBlockM, ds[1][n]);
    }
  }
}

struct Probabilities {
  BlockBuffers out;
  QueryLanes rows;
  float scale_log2;

  template <int R, int V>
  TILEWISE_HD void prefetch(int, int) const {}
  template <int R, int V>
  TILEWISE_HD void finish(Vec (&acc)[R][V], int key, int lane) const {
    const Vec scale = Simd::set(scale_log2);
    TILEWISE_UNROLL for (int i = 0; i < R; ++i) {
      TILEWISE_UNROLL for (int n = 0; n < V; ++n) {
        acc[i][n] = Simd::fms(acc[i][n], scale, load_lanes(rows.lse, lane + n * kLanes));
      }
      weights<V>(rows, lane, acc[i]);
      store_p(out, acc[i], key + i, lane);
    }
  }
};

struct ScoreGradients {
  BlockBuffers out;
  QueryLanes rows;

  template <int R, int V>
  TILEWISE_HD void prefetch(int, int) const {}
  template <int R, int V>
  TILEWISE_HD void finish(Vec (&acc)[R][V], int key, int lane) const {
    TILEWISE_UNROLL for (int i = 0; i < R; i += 2) {
      Vec ds[2][V];
      TILEWISE_UNROLL for (int j = 0; j < 2; ++j) {
        TILEWISE_UNROLL for (int n = 0; n < V; ++n) {
          const float* p = out.p + (key + i + j) * kBlockM + lane + n * kLanes;
          const Vec delta = load_lanes(rows.delta, lane + n * kLanes);
          ds[j][n] = Simd::mul(Simd::load(p), Simd::sub(acc[i + j][n], delta));
        }
      }
      store_ds(out, ds, key + i, lane);
    }
  }
};

// Which lanes see key j of the current block.
TILEWISE_HD Mask visible_lanes(const QueryLanes& rows, int lane, int key) {
  const Vec j = Simd::set(static_cast<float>(key));
  return Simd::both(Simd::less_equal(load_lanes(rows.key_begin, lane), j),
                    Simd::less(j, load_lanes(rows.key_end, lane)));
}

// The second pass for P: out.p holds K Q^T. Hidden pairs become exactly 0, whatever stands there.
inline void probabilities_pass(const BackwardParams& p, const QueryLanes& rows,
                               const BlockBuffers& out, int keys, int lanes) {
  const Vec scale_log2 = Simd::set(p.scale * kLog2e);
  const bool capped = p.softcap > 0.0f;
  const Vec to_cap = Simd::set(capped ? p.scale / p.softcap : 0.0f);
  const Vec cap_log2 = Simd::set(p.softcap * kLog2e);
  for (int key = 0; key < keys; ++key) {
    for (int lane = 0; lane < lanes; lane += kLanes) {
      float* at = out.p + key * kBlockM + lane;
      Vec score = Simd::load(at);
      Vec factor = scale_log2;
      if (capped) {
        score = tanh(Simd::mul(score, to_cap));
        factor = cap_log2;
        Simd::store(out.cap_slope + key * kBlockM + lane,
                    Simd::sub(Simd::set(1.0f), Simd::mul(score, score)));
      }
      Vec subtrahend = load_lanes(rows.lse, lane);
      if (p.alibi_slopes != nullptr) {
        const Vec distance = Simd::abs(
            Simd::sub(load_lanes(rows.diagonal, lane), Simd::set(static_cast<float>(key))));
        subtrahend = Simd::fma(load_lanes(rows.slope, lane), distance, subtrahend);
      }
      // A score far above the lse is not of the forward that gave it (exp2 ends at 127), or q or
      // k is infinite: the weight is too, so that the gradients it reaches show it.
      Vec weight[1] = {Simd::fms(score, factor, subtrahend)};
      const Vec highest = Simd::add(load_lanes(rows.lowest, lane), Simd::set(127.0f - kExp2Lowest));
      const Mask handled = Simd::less_equal(weight[0], highest);
      weights<1>(rows, lane, weight);
      weight[0] = Simd::select(handled, weight[0], Simd::set(__builtin_inff()));
      weight[0] = Simd::select(visible_lanes(rows, lane, key), weight[0], Simd::zero());
      store_p(out, weight, key, lane);
    }
  }
}

// The second pass for dS: out.ds holds V dO^T, out.p the weights. `keys` is even.
inline void score_gradients_pass(const BackwardParams& p, const QueryLanes& rows,
                                 const BlockBuffers& out, int keys, int lanes) {
  for (int key = 0; key < keys; key += 2) {
    for (int lane = 0; lane < lanes; lane += kLanes) {
      Vec ds[2][1];
      for (int j = 0; j < 2; ++j) {
        const int at = (key + j) * kBlockM + lane;
        Vec x = Simd::mul(Simd::load(out.p + at),
                          Simd::sub(Simd::load(out.ds + at), load_lanes(rows.delta, lane)));
        if (p.softcap > 0.0f && !planted(Defect::kCapSlopeOmitted)) {
          x = Simd::mul(x, Simd::load(out.cap_slope + at));
        }
        ds[j][0] = Simd::select(visible_lanes(rows, lane, key + j), x, Simd::zero());
      }
      store_ds(out, ds, key, lane);
    }
  }
}

}  // namespace tilewise::cpu::TILEWISE_ISA_NAMESPACE::backward
