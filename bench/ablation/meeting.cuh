// Where warps that divide the keys of the same query rows meet: FlashAttention-1's division of
// work.
#pragma once

#include "bench/ablation/tile.h"
#include "cuda/tile/fragment.cuh"
#include "cuda/tile/rows.cuh"

namespace tilewise::ablation {

// In shared memory. The caller puts a barrier between what some warps write and others read.
template <Tile kTile>
struct Meeting {
  static constexpr int kRowAtoms = kTile.row_atoms(), kOwnAtoms = kTile.own_atoms();
  using Product = cuda::Accumulator<kRowAtoms, kTile.head_dim / 8>;
  using Output = cuda::Accumulator<kRowAtoms, kOwnAtoms>;
  using RowValues = cuda::Rows<Product::kRows>;
  using OfRows = float[kTile.key_warps][kTile.block_m];

  OfRows maxima, sums;
  // [rows][taker][giver]: fragments as the lanes hold them, in accesses of 16 bytes.
  float4 products[kTile.row_warps][kTile.key_warps][kTile.key_warps - 1][kRowAtoms][kOwnAtoms][32];

  static __device__ __forceinline__ int row_warp() { return cuda::warp_id() / kTile.key_warps; }
  static __device__ __forceinline__ int key_warp() { return cuda::warp_id() % kTile.key_warps; }
  static __device__ __forceinline__ int row(int r) {
    return row_warp() * 16 * kRowAtoms + Product::row(r);
  }

  // A value for each of this warp's rows, into maxima or sums.
  static __device__ __forceinline__ void publish(OfRows& to, const RowValues& x) {
    if (cuda::lane_id() % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < Product::kRows; ++r) to[key_warp()][row(r)] = x.x[r];
  }
  __device__ __forceinline__ RowValues highest() const {
    return join(maxima, [](float a, float b) { return fmaxf(a, b); });
  }
  __device__ __forceinline__ RowValues total() const {
    return join(sums, [](float a, float b) { return a + b; });
  }

  // o += this warp's product in the columns that it keeps; the others' columns go to them.
  __device__ __forceinline__ void give(const Product& product, Output& o) {
#pragma unroll
    for (int taker = 0; taker < kTile.key_warps; ++taker) {
      const bool mine = taker == key_warp();
      const int place = key_warp() - (key_warp() > taker ? 1 : 0);
#pragma unroll
      for (int m = 0; m < kRowAtoms; ++m) {
#pragma unroll
        for (int n = 0; n < kOwnAtoms; ++n) {
          const float(&c)[4] = product.c[m][taker * kOwnAtoms + n];
          if (mine) {
            add(o.c[m][n], make_float4(c[0], c[1], c[2], c[3]));
          } else {
            products[row_warp()][taker][place][m][n][cuda::lane_id()] =
                make_float4(c[0], c[1], c[2], c[3]);
          }
        }
      }
    }
  }
  // o += what the others gave to this warp.
  __device__ __forceinline__ void take(Output& o) const {
#pragma unroll
    for (int giver = 0; giver < kTile.key_warps - 1; ++giver) {
#pragma unroll
      for (int m = 0; m < kRowAtoms; ++m) {
#pragma unroll
        for (int n = 0; n < kOwnAtoms; ++n) {
          add(o.c[m][n], products[row_warp()][key_warp()][giver][m][n][cuda::lane_id()]);
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ void add(float (&to)[4], const float4& x) {
    to[0] += x.x;
    to[1] += x.y;
    to[2] += x.z;
    to[3] += x.w;
  }
  template <class Join>
  static __device__ __forceinline__ RowValues join(const OfRows& from, const Join& join) {
    return cuda::RowOps<Product::kRows>::map([&](int r) {
      float y = from[0][row(r)];
#pragma unroll
      for (int w = 1; w < kTile.key_warps; ++w) y = join(y, from[w][row(r)]);
      return y;
    });
  }
};

}  // namespace tilewise::ablation
