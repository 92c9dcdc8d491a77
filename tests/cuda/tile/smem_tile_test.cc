// The swizzle, on the host: the header's functions are plain arithmetic, so what CUDA adds to the
// language is declared away. Needs no device.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <vector_functions.h>

#include <cstdint>
#include <set>

// Shared memory's addresses are 32 bits; the host's low ones do as well.
static inline size_t __cvta_generic_to_shared(const void* p) {
  return reinterpret_cast<uintptr_t>(p) & 0xffffffffu;
}
#include "cuda/tile/smem_tile.cuh"

namespace tilewise::cuda {
namespace {

template <class Tile>
class SmemTiles : public testing::Test {};

// The head dims of the kernels, and the widths of other tiles.
using Tiles =
    testing::Types<SmemTile<64, 32>, SmemTile<64, 64>, SmemTile<128, 96>, SmemTile<64, 128>,
                   SmemTile<64, 160>, SmemTile<128, 192>, SmemTile<64, 256>>;
TYPED_TEST_SUITE(SmemTiles, Tiles);

template <class Tile>
constexpr int rows_of() {
  return static_cast<int>(sizeof(Tile)) / (16 * Tile::kChunks);
}

TYPED_TEST(SmemTiles, EveryChunkHasAPlaceOfItsOwnInItsRow) {
  for (int row = 0; row < rows_of<TypeParam>(); ++row) {
    std::set<int> places;
    for (int chunk = 0; chunk < TypeParam::kChunks; ++chunk) {
      const int offset = TypeParam::offset(row, chunk);
      EXPECT_EQ(offset % 8, 0);
      EXPECT_EQ(offset / (8 * TypeParam::kChunks), row);
      places.insert(offset);
    }
    EXPECT_EQ(places.size(), static_cast<size_t>(TypeParam::kChunks));
  }
}

// Shared memory has 32 banks of 4 bytes, so 8 chunks can be read at once, from 8 groups of banks.
// ldmatrix reads one column of 8 rows at a time.
TYPED_TEST(SmemTiles, LdmatrixReadsWithoutBankConflicts) {
  for (int first = 0; first < rows_of<TypeParam>(); first += 8) {
    for (int chunk = 0; chunk < TypeParam::kChunks; ++chunk) {
      std::set<int> groups;
      for (int row = first; row < first + 8; ++row) {
        groups.insert(TypeParam::offset(row, chunk) / 8 % 8);
      }
      EXPECT_EQ(groups.size(), 8u) << "rows from " << first << ", chunk " << chunk;
    }
  }
}

// Threads copy consecutive chunks, 8 of them at a time.
TYPED_TEST(SmemTiles, RowsAreWrittenWithoutBankConflicts) {
  constexpr int kChunks = TypeParam::kChunks;
  if (kChunks % 8 != 0) return;  // the others wrap around the end of a row
  for (int first = 0; first < rows_of<TypeParam>() * kChunks; first += 8) {
    std::set<int> groups;
    for (int i = first; i < first + 8; ++i) {
      groups.insert(TypeParam::offset(i / kChunks, i % kChunks) / 8 % 8);
    }
    EXPECT_EQ(groups.size(), 8u) << "chunks from " << first;
  }
}

TYPED_TEST(SmemTiles, AdvanceIsTheAddressOfTheLaterChunk) {
  static TypeParam tile;
  for (int row = 0; row < 16; ++row) {
    for (int chunk = 0; chunk < 2; ++chunk) {
      const uint32_t from = tile.address(row, chunk);
      for (int rows = 0; row + rows < rows_of<TypeParam>(); rows += 8) {
        for (int chunks = 0; chunk + chunks < TypeParam::kChunks; ++chunks) {
          if ((chunk & chunks) != 0) continue;  // only without a carry
          EXPECT_EQ(TypeParam::advance(from, rows, chunks),
                    tile.address(row + rows, chunk + chunks))
              << row << "+" << rows << ", " << chunk << "+" << chunks;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::cuda
