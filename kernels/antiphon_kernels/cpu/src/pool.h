// The threads of the kernels: a caller and helpers that join it when they can.
//
// Work is handed out in small pieces, and a call ends when the pieces are done and the helpers
// that took some have left. A helper that the system has not scheduled costs nothing, unlike
// at the barrier of an OpenMP region, which waits for every thread: on a machine whose cores
// also run the other services that is the difference between microseconds and time slices.
#pragma once

#include <atomic>
#include <cstdint>

namespace antiphon {

// Hands out [0, count) in pieces.
class Cursor {
 public:
  Cursor(int64_t count, int64_t piece) : next_(0), count_(count), piece_(piece) {}

  bool take(int64_t& begin, int64_t& end) {
    begin = next_.fetch_add(piece_, std::memory_order_relaxed);
    if (begin >= count_) return false;
    end = begin + piece_ < count_ ? begin + piece_ : count_;
    return true;
  }

 private:
  std::atomic<int64_t> next_;
  const int64_t count_;
  const int64_t piece_;
};

typedef void (*Work)(const void* context, Cursor& cursor);

// Runs work on the calling thread and on up to threads - 1 helpers, each until the cursor is
// empty. When another thread is inside, the caller works alone.
void run_team(int threads, Work work, const void* context, Cursor& cursor);

// Calls participate(cursor) on every thread that takes part.
template <typename Participate>
inline void in_team(int threads, int64_t count, int64_t piece, const Participate& participate) {
  Cursor cursor(count, piece);
  if (threads < 2 || count <= piece) {
    participate(cursor);
    return;
  }
  run_team(
      threads,
      [](const void* context, Cursor& shared) {
        (*static_cast<const Participate*>(context))(shared);
      },
      &participate, cursor);
}

// Calls body(i) for i in [0, count), about eight pieces for each thread.
template <typename Body>
inline void parallel_for(int threads, int64_t count, const Body& body) {
  const int64_t piece = count / (threads * 8) + 1;
  in_team(threads, count, piece, [&body](Cursor& cursor) {
    for (int64_t begin, end; cursor.take(begin, end);)
      for (int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace antiphon
