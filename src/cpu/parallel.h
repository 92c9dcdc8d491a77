// parallel_for: the one way this backend uses threads.
#pragma once

#include <cstdint>

#include "core/plan.h"

namespace tilewise::cpu {

// Calls body(task, worker) once for every task in [0, tasks), in ascending order of start, from at
// most `workers` threads; worker is in [0, workers) and no two concurrent calls share it. Returns
// when all have finished. Tasks are handed out one at a time, so put the heaviest first. Inside
// another parallel region everything runs on the calling thread. Does not allocate with OpenMP or a
// caller's pool.
using TaskBody = void (*)(const void* context, int64_t task, int worker);
void parallel_for(int64_t tasks, int workers, const ThreadPool* pool, TaskBody body,
                  const void* context);

template <class F>
void parallel_for(int64_t tasks, int workers, const ThreadPool* pool, const F& f) {
  parallel_for(
      tasks, workers, pool,
      [](const void* context, int64_t task, int worker) {
        (*static_cast<const F*>(context))(task, worker);
      },
      &f);
}

// "openmp" or "std::thread": what runs when the caller brings no pool.
const char* thread_backend();

}  // namespace tilewise::cpu
