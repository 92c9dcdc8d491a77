// Defects planted on purpose, one at a time, in builds with TILEWISE_PLANTED_DEFECTS: the test
// suite must catch every one of them (tests/suite/defects_test.cc). Other builds carry nothing of
// this.
#pragma once

#include "core/hd.h"

namespace tilewise {

enum class Defect : int {
  kNone,
  // Forward; the first three in decode too
  kLastKeyDropped,
  kCausalOffByOne,
  kScaleOnePercent,
  kPaddedKeyCounted,  // a zero-filled key behind the last one counts in the row sum
  kSixteenBitSums,    // O is rounded to 16 bits after every block of keys
  kMissedRescale,     // O keeps its old scale when the reference moves
  kStaleValue,        // one element of V is that of the block before
  kChunkForgotten,    // decode: the last chunk of keys is not joined
  // Backward
  kDeltaOmitted,
  kDqPartialDropped,     // of the last super-block of keys
  kStaleOutputGradient,  // one element of dO is that of the block of rows before
  kCapSlopeOmitted,      // derivative of the softcap
  kBackwardCausalOffByOne,
  kNumDefects
};

constexpr const char* kDefectNames[] = {"none",
                                        "last_key_dropped",
                                        "causal_off_by_one",
                                        "scale_one_percent",
                                        "padded_key_counted",
                                        "sixteen_bit_sums",
                                        "missed_rescale",
                                        "stale_value",
                                        "chunk_forgotten",
                                        "delta_omitted",
                                        "dq_partial_dropped",
                                        "stale_output_gradient",
                                        "cap_slope_omitted",
                                        "backward_causal_off_by_one"};

#if defined(TILEWISE_PLANTED_DEFECTS)
extern Defect planted_defect;  // src/core/planted.cc; set between runs, never during one
TILEWISE_HD bool planted(Defect d) { return planted_defect == d; }
#else
TILEWISE_HD constexpr bool planted(Defect) { return false; }
#endif

}  // namespace tilewise
