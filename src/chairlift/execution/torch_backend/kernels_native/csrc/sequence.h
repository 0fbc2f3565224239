// Runs a sequence of operations on however many threads come to help, each operation when the one before has ended.
//
// Knows nothing of what operations compute. An operation is cut into items; threads take items from its counter, and go
// on to the next operation when all its items are done, not merely taken. A thread that comes late runs through what is
// done and helps with what is left; one that never comes is never waited for.
#pragma once

#include <atomic>
#include <cstdint>

#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace chairlift {

typedef void (*ItemBody)(const int64_t* arguments, int64_t item);

struct Operation {
  // What is written while it runs lies on cache lines of its own.
  ItemBody body;
  int64_t num_items;
  int64_t padding_0[6];
  std::atomic<int64_t> next;
  int64_t padding_1[7];
  std::atomic<int64_t> done;
  int64_t padding_2[7];
  int64_t arguments[24];
};
static_assert(sizeof(Operation) == 48 * 8, "the layout that Python fills in");

inline void wait_a_little(int64_t spins) {
#if defined(__x86_64__)
  if (spins < 2000) {
    _mm_pause();
    return;
  }
#endif
  sched_yield();
}

// Arguments of a body: 0 and 1 are counters that it does not need; 2: first operation, 3: number of operations.
inline void run_sequence(const int64_t* arguments) {
  Operation* operations = (Operation*)arguments[2];
  for (Operation* operation = operations; operation < operations + arguments[3]; operation++) {
    int64_t item;
    while ((item = operation->next.load(std::memory_order_relaxed)) < operation->num_items) {
      item = operation->next.fetch_add(1, std::memory_order_relaxed);
      if (item >= operation->num_items) break;
      operation->body(operation->arguments, item);
      operation->done.fetch_add(1, std::memory_order_release);
    }
    for (int64_t spins = 0; operation->done.load(std::memory_order_acquire) < operation->num_items; spins++)
      wait_a_little(spins);
  }
}

}  // namespace chairlift
