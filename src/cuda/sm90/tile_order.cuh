// The order in which the sm_90 kernels take their tiles: blocks of rows or of keys, of all heads.
#pragma once

namespace tilewise::cuda::sm90 {

struct HeadBlock {
  int head, block;
};

// Tiles go through a section of heads, whose tensors stay in the L2 cache, before the next one:
// block 0 of each of its heads, then block 1, and so on. A small section at the end would have long
// tiles where no others are left, so the last one has the heads that are left too.
__device__ __forceinline__ HeadBlock in_sections(int tile, int blocks, int all_heads,
                                                 int section_heads, int last_section) {
  const int section = min(tile / (section_heads * blocks), last_section);
  const int first_head = section * section_heads;
  const int heads = section < last_section ? section_heads : all_heads - first_head;
  const int in_section = tile - first_head * blocks;
  const int block = in_section / heads;
  return {first_head + in_section - block * heads, block};
}

}  // namespace tilewise::cuda::sm90
