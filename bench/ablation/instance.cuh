// What each compiled file holds: the kernels of one element type and head dim.
#pragma once

#include "bench/ablation/forward.cuh"
#include "bench/ablation/launch.h"

namespace tilewise::ablation {

template <DType kType, int kHeadDim, Normalise kNormalise, bool kParallelRows, Split kSplit,
          bool kCausal>
Kernel make_kernel() {
  constexpr Tile kTile = tile_of(kHeadDim, kSplit, kParallelRows, kCausal);
  const auto function = forward<kType, kHeadDim, kNormalise, kParallelRows, kSplit, kCausal>;
  return {reinterpret_cast<const void*>(function), kTile, static_cast<int>(sizeof(Smem<kTile>)),
          kParallelRows};
}

// Values to template arguments, one after the other.
template <DType kType, int kHeadDim, Normalise kNormalise, bool kParallelRows>
Kernel choose_split(bool causal, Changes c) {
  constexpr auto kKeys = Split::kKeys, kQueries = Split::kQueries;
  if (c.split_queries) {
    return causal ? make_kernel<kType, kHeadDim, kNormalise, kParallelRows, kQueries, true>()
                  : make_kernel<kType, kHeadDim, kNormalise, kParallelRows, kQueries, false>();
  }
  return causal ? make_kernel<kType, kHeadDim, kNormalise, kParallelRows, kKeys, true>()
                : make_kernel<kType, kHeadDim, kNormalise, kParallelRows, kKeys, false>();
}

template <DType kType, int kHeadDim>
Kernel kernel_of(bool causal, Changes c) {
  constexpr auto kEveryBlock = Normalise::kEveryBlock, kOnce = Normalise::kOnce;
  if (c.normalise_once) {
    return c.parallel_rows ? choose_split<kType, kHeadDim, kOnce, true>(causal, c)
                           : choose_split<kType, kHeadDim, kOnce, false>(causal, c);
  }
  return c.parallel_rows ? choose_split<kType, kHeadDim, kEveryBlock, true>(causal, c)
                         : choose_split<kType, kHeadDim, kEveryBlock, false>(causal, c);
}

}  // namespace tilewise::ablation
