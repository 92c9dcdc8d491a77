#include "cpu/parallel.h"

#include <atomic>

#if defined(TILEWISE_USE_OPENMP)
#include <omp.h>
#else
#include <system_error>
#include <thread>
#endif

namespace tilewise::cpu {
namespace {

struct Job {
  int64_t tasks;
  TaskBody body;
  const void* context;
  std::atomic<int64_t> next{0};

  void work(int worker) {
    for (int64_t task = next.fetch_add(1, std::memory_order_relaxed); task < tasks;
         task = next.fetch_add(1, std::memory_order_relaxed)) {
      body(context, task, worker);
    }
  }
};

#if defined(TILEWISE_USE_OPENMP)

void run(Job& job, int workers) {
  if (omp_in_parallel()) {
    job.work(0);
    return;
  }
#pragma omp parallel num_threads(workers)
  job.work(omp_get_thread_num());
}

#else

thread_local bool inside_region = false;

void run(Job& job, int workers) {
  if (inside_region) {
    job.work(0);
    return;
  }
  constexpr int kMostThreads = 256;
  std::thread threads[kMostThreads];
  int started = 1;
  for (; started < workers && started < kMostThreads; ++started) {
    try {
      threads[started] = std::thread([&job, started] {
        inside_region = true;
        job.work(started);
      });
    } catch (const std::system_error&) {
      break;  // no more threads to be had: those that started do the work
    }
  }
  inside_region = true;
  job.work(0);
  inside_region = false;
  for (int i = 1; i < started; ++i) threads[i].join();
}

#endif

}  // namespace

void parallel_for(int64_t tasks, int workers, const ThreadPool* pool, TaskBody body,
                  const void* context) {
  if (workers > tasks) workers = static_cast<int>(tasks);
  Job job{tasks, body, context};
  if (workers <= 1) {
    job.work(0);
  } else if (pool != nullptr && pool->parallel_for != nullptr) {
    pool->parallel_for(
        pool->pool, workers,
        [](void* shared, int64_t worker) {
          static_cast<Job*>(shared)->work(static_cast<int>(worker));
        },
        &job);
  } else {
    run(job, workers);
  }
}

const char* thread_backend() {
#if defined(TILEWISE_USE_OPENMP)
  return "openmp";
#else
  return "std::thread";
#endif
}

}  // namespace tilewise::cpu
