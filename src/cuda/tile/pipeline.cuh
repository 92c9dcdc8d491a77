// How the roles of a warp-specialised kernel wait for each other: barriers of shared memory, rings
// of stages, and a mailbox.
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/tile/fragment.cuh"

namespace tilewise::cuda {

struct Barrier {
  uint64_t word;

  __device__ __forceinline__ uint32_t address() const { return smem_address(&word); }
  __device__ __forceinline__ void init(int arrivals) { ptx::mbarrier_init(address(), arrivals); }
  __device__ __forceinline__ void arrive() { ptx::mbarrier_arrive(address()); }
  // By one lane for its warp, which has come together.
  __device__ __forceinline__ void arrive_as_warp() {
    __syncwarp();
    if (lane_id() == 0) arrive();
  }
  __device__ __forceinline__ void arrive_expecting(int bytes) {
    ptx::mbarrier_arrive_expect(address(), bytes);
  }
  __device__ __forceinline__ void wait(uint32_t parity) { ptx::mbarrier_wait(address(), parity); }
};

// Where a role stands in a ring of stages. Each stage has two barriers: `full`, that its content is
// there, and `empty`, that nobody needs it any more. Consumers wait for full with `phase`,
// producers for empty with the other parity: a stage is empty at first.
template <int kStages>
struct Ring {
  int place = 0;  // one register: of two rounds through the stages

  __device__ __forceinline__ int stage() const { return place < kStages ? place : place - kStages; }
  __device__ __forceinline__ uint32_t phase() const { return place < kStages ? 0 : 1; }
  __device__ __forceinline__ void advance() { place = place + 1 == 2 * kStages ? 0 : place + 1; }
  // Where it stood before the last advance().
  __device__ __forceinline__ Ring before() const {
    return {place == 0 ? 2 * kStages - 1 : place - 1};
  }
};

template <int kStages>
struct StageBarriers {
  Barrier full[kStages], empty[kStages];

  __device__ __forceinline__ void init(int producers, int consumers) {
    for (int i = 0; i < kStages; ++i) {
      full[i].init(producers);
      empty[i].init(consumers);
    }
  }
  __device__ __forceinline__ void wait_full(const Ring<kStages>& at) {
    full[at.stage()].wait(at.phase());
  }
  __device__ __forceinline__ void wait_empty(const Ring<kStages>& at) {
    empty[at.stage()].wait(at.phase() ^ 1);
  }
};

// Messages that one thread tells all readers, in order; two may be on their way. Every role counts
// them with a ring of its own. Message: some ints.
template <class Message>
struct Mailbox {
  static constexpr int kInts = sizeof(Message) / sizeof(int);
  static_assert(sizeof(Message) % sizeof(int) == 0);

  StageBarriers<2> barriers;
  Message messages[2];

  // Readers: whole warps, and threads alone.
  __device__ __forceinline__ void init(int warps, int threads = 0) {
    barriers.init(1, 32 * warps + threads);
  }
  // One thread.
  __device__ __forceinline__ void post(Ring<2>& at, const Message& x) {
    barriers.wait_empty(at);
    messages[at.stage()] = x;
    barriers.full[at.stage()].arrive();
    at.advance();
  }
  // A whole warp, whose lanes arrive one by one: racecheck knows no other order.
  __device__ __forceinline__ Message read(Ring<2>& at) {
    barriers.wait_full(at);
    Message x = messages[at.stage()];
    int* const ints = reinterpret_cast<int*>(&x);
#pragma unroll
    for (int i = 0; i < kInts; ++i) ints[i] = uniform(ints[i]);
    barriers.empty[at.stage()].arrive();
    at.advance();
    return x;
  }
  // One thread.
  __device__ __forceinline__ Message read_alone(Ring<2>& at) {
    barriers.wait_full(at);
    const Message x = messages[at.stage()];
    barriers.empty[at.stage()].arrive();
    at.advance();
    return x;
  }
};

}  // namespace tilewise::cuda
