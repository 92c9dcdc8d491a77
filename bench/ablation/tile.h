// How the kernel of forward.cuh cuts its problem, for each division of the work over warps.
#pragma once

namespace tilewise::ablation {

// FlashAttention-1 divides the O by the row sums after every block of keys, FlashAttention-2 once.
enum class Normalise { kEveryBlock, kOnce };
// Who shares a block of scores: warps with keys of their own, or warps with query rows of their
// own.
enum class Split { kKeys, kQueries };

// row_warps x key_warps warps: each has block_m / row_warps query rows, and of every step
// block_n / key_warps keys.
struct Tile {
  int head_dim, block_m, block_n, row_warps, key_warps;
  int blocks_per_sm;  // registers are limited so that so many fit

  constexpr int row_atoms() const { return block_m / row_warps / 16; }  // of a warp
  constexpr int keys() const { return block_n / key_warps; }            // of a warp
  constexpr int own_atoms() const { return head_dim / 8 / key_warps; }  // columns of O it keeps
  constexpr int warps() const { return row_warps * key_warps; }
  constexpr int threads() const { return 32 * warps(); }
  constexpr bool splits_keys() const { return key_warps > 1; }
  // A split of the keys has barriers between the products, where the next keys' and values' loads
  // can start, and needs no second place for them.
  constexpr int stages() const { return splits_keys() ? 1 : 2; }
};

// Each variant has the tile that was best for it on an H200 (geometric mean of S = 512, 2048,
// 8192). Queries: the tile that the library's own forward began with. Keys: of seven for
// each head dim; as in FlashAttention-1 four warps share the keys.
constexpr Tile tile_of(int head_dim, Split split, bool parallel_rows, bool causal) {
  if (split == Split::kQueries) return {head_dim, 128, 64, 4, 1, 2};
  if (head_dim == 128) return {128, 64, 128, 2, 4, 1};
  if (causal) return {64, 64, 128, 2, 4, 2};
  return parallel_rows ? Tile{64, 32, 256, 1, 4, 2} : Tile{64, 64, 256, 2, 4, 1};
}

}  // namespace tilewise::ablation
