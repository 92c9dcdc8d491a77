// Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): a counter
// and a key in, four random words out. No state, so host and device agree word for word.
#pragma once

#include <cstdint>

#include "core/hd.h"

namespace tilewise {

struct PhiloxCounter {
  uint32_t word[4];
};
struct PhiloxKey {
  uint32_t word[2];
};

TILEWISE_HD constexpr PhiloxCounter philox_4x32_10(PhiloxCounter c, PhiloxKey key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * c.word[0];
    const uint64_t product1 = kMultiplier1 * c.word[2];
    c = {{static_cast<uint32_t>(product1 >> 32) ^ c.word[1] ^ key.word[0],
          static_cast<uint32_t>(product1),
          static_cast<uint32_t>(product0 >> 32) ^ c.word[3] ^ key.word[1],
          static_cast<uint32_t>(product0)}};
    key.word[0] += kWeyl0;
    key.word[1] += kWeyl1;
  }
  return c;
}

// A stream of random words for one (seed, stream) pair; word i depends on nothing else.
class PhiloxStream {
 public:
  TILEWISE_HD constexpr explicit PhiloxStream(uint64_t seed, uint64_t stream = 0)
      : key_{{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}}, stream_(stream) {}

  TILEWISE_HD constexpr uint32_t word(uint64_t index) const {
    const uint64_t block = index / 4;
    const PhiloxCounter c = {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                              static_cast<uint32_t>(stream_),
                              static_cast<uint32_t>(stream_ >> 32)}};
    return philox_4x32_10(c, key_).word[index % 4];
  }

 private:
  PhiloxKey key_;
  uint64_t stream_;
};

}  // namespace tilewise
