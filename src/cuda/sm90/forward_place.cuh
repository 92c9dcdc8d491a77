// Tiles of the sm_90 forward: where each one is, and in which order they come.
#pragma once

#include "cuda/common/place.cuh"
#include "cuda/params.h"
#include "cuda/sm90/forward_tile.h"
#include "cuda/sm90/tile_order.cuh"

namespace tilewise::cuda::sm90 {

// A tile: a block of query rows of a head.
struct TilePlace {
  static constexpr int q_start = 0, k_start = 0;  // sequences begin with their tensors' rows
  int batch, first_head, kv_head;
  int flat_head;  // head of all batches
  int first_row;  // its first query
  int n_q, n_k;

  __device__ __forceinline__ BasicLengths<int> lengths() const { return {n_q, n_k}; }
  __device__ __forceinline__ int query(const ForwardParams&, int row) const {
    return first_row + row;
  }
  // In the tensors, as the copy engine knows them.
  __device__ __forceinline__ int tensor_batch(const ForwardParams&) const { return batch; }
  __device__ __forceinline__ bool empty() const { return false; }
};

// The general variant's: sequences may be packed one after the other (varlen), heads of a group may
// share the rows, and keys may be split.
struct SequenceTile : Place {
  __device__ __forceinline__ int tensor_batch(const ForwardParams& p) const {
    return p.cu_seqlens_q != nullptr ? 0 : batch;
  }
  __device__ __forceinline__ bool empty() const { return rows <= 0; }
  // Does the copy engine store rows [first, first + 64)? Not where what follows them may be another
  // sequence's.
  __device__ __forceinline__ bool leaves_by_engine(const ForwardParams& p, int first) const {
    return p.pack == 1 && p.num_splits == 1 && first + 64 <= rows;
  }
};

template <bool kGeneral>
struct PlaceType {
  using Type = TilePlace;
};
template <>
struct PlaceType<true> {
  using Type = SequenceTile;
};
template <ForwardTile kTile>
using PlaceOf = typename PlaceType<kTile.general()>::Type;

// Under a band the last rows, which see most keys, go first: short tiles fill the gaps at the end.
template <ForwardTile kTile>
__device__ __forceinline__ TilePlace place_in_section(const TileForwardParams& p, int tile) {
  const auto [head, m_block] =
      in_sections(tile, p.m_blocks, p.batch * p.num_heads, p.section_heads, p.last_section);
  TilePlace at;
  at.flat_head = head;
  at.batch = head / p.num_heads;
  at.first_head = head - at.batch * p.num_heads;
  at.kv_head = at.first_head / p.group;
  at.first_row = (kTile.banded() ? p.m_blocks - 1 - m_block : m_block) * kTile.block_m();
  at.n_q = p.seqlen_q;
  at.n_k = p.seqlen_k;
  return at;
}

// Sequences have places for tiles, as many for each head, that nobody has to count: sequence b's
// begin at that of its first token plus b. That is enough for all its rows, and one too many at
// most: an empty tile.
template <ForwardTile kTile>
__device__ __forceinline__ int first_place(const TileForwardParams& p, int batch) {
  return p.cu_seqlens_q != nullptr ? p.cu_seqlens_q[batch] / (kTile.block_m() / p.pack) + batch
                                   : batch * p.m_blocks;
}

// Tiles go through the sequences, then through the heads, then from the last rows to the first,
// then through the splits.
template <ForwardTile kTile>
__device__ __forceinline__ SequenceTile place_in_sequence(const TileForwardParams& p, int tile) {
  const int place = tile / p.num_splits, units = p.num_heads / p.pack;
  int begin = 0, end = p.batch;  // the sequence is in there
  while (end - begin > 1) {
    const int middle = begin + (end - begin) / 2;
    (first_place<kTile>(p, middle) * units <= place ? begin : end) = middle;
  }
  const int first = first_place<kTile>(p, begin);
  const int places = first_place<kTile>(p, begin + 1) - first;
  const int in_sequence = place - first * units, unit = in_sequence / places;
  SequenceTile at;
  at.batch = begin;
  at.split = tile - place * p.num_splits;
  at.first_head = unit * p.pack;
  at.kv_head = at.first_head / p.group;
  at.q_start = at.k_start = 0;
  at.n_q = p.seqlen_q;
  at.n_k = p.seqlen_k;
  if (p.cu_seqlens_q != nullptr) {
    at.q_start = p.cu_seqlens_q[begin];
    at.k_start = p.cu_seqlens_k[begin];
    at.n_q = p.cu_seqlens_q[begin + 1] - at.q_start;
    at.n_k = p.cu_seqlens_k[begin + 1] - at.k_start;
  }
  const int m_block = places - 1 - (in_sequence - unit * places);
  at.first_row = m_block * kTile.block_m();
  at.rows = unit < units ? min(at.n_q * p.pack - at.first_row, kTile.block_m()) : 0;
  return at;
}

template <ForwardTile kTile>
__device__ __forceinline__ PlaceOf<kTile> place_of(const TileForwardParams& p, int tile) {
  if constexpr (kTile.general()) {
    return place_in_sequence<kTile>(p, tile);
  } else {
    return place_in_section<kTile>(p, tile);
  }
}

// A step of no keys: of a split's rows that see none of its piece.
__device__ __forceinline__ Steps step_behind(int n_k, int block_n) {
  const int behind = (n_k + block_n - 1) / block_n;
  return {behind, behind, behind, behind + 1};
}

// Steps of block_n keys of a tile, one at least: rows that see nothing take a step that shows them
// nothing. Every row that sees a key of a full step sees one in the first step or in one at the
// edge, where references are set: where the first row's keys end with a step, that is an edge too.
// Under ALiBi all are: scores may rise from step to step by more than a reference allows.
template <ForwardTile kTile>
__device__ __forceinline__ Steps steps_of(const TileForwardParams& p, const PlaceOf<kTile>& at) {
  if constexpr (!kTile.banded()) {
    const int full = at.n_k / kTile.block_n;
    return {0, 0, full, full + (at.n_k % kTile.block_n != 0 ? 1 : 0)};
  } else {
    Steps kv;
    int first_row = at.first_row;
    if constexpr (kTile.general()) {
      kv = at.steps(p, kTile.block_n, true);
      if (kv.empty()) return step_behind(at.n_k, kTile.block_n);
      if (p.alibi_slopes != nullptr) kv.full_end = kv.full_begin;
      first_row = at.query(p, 0);
    } else {
      const int end_row = at.first_row + kTile.block_m();
      kv = p.mask.kv_range(at.first_row, end_row, at.lengths(), kTile.block_n);
      if (kv.empty()) return {0, 0, 0, 1};
    }
    const int first_end = p.mask.keys_of(first_row, at.lengths()).end;
    if (kv.full_end < kv.end && first_end == kv.full_end * kTile.block_n) --kv.full_end;
    if (kv.full_end <= kv.full_begin) kv.full_begin = kv.full_end = kv.begin;
    return kv;
  }
}

}  // namespace tilewise::cuda::sm90
