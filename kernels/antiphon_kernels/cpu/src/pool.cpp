#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace antiphon {
namespace {

constexpr int kMaxHelpers = 127;
// How long an idle helper polls before it sleeps: longer than the pause between two operations
// of a step, much shorter than a step.
constexpr std::chrono::microseconds kPollTime(60);
constexpr int kPollsPerClockRead = 32;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The state word of a job: number, helpers wanted, whether it is open, helpers inside.
constexpr uint64_t kInside = 0x7f;
constexpr uint64_t kOpen = 0x80;
inline int wanted(uint64_t state) { return static_cast<int>(state >> 8 & 0xff); }
inline uint64_t number(uint64_t state) { return state >> 16; }

class Team {
 public:
  void run(int threads, Work work, const void* context, Cursor& cursor) {
    std::unique_lock<std::mutex> turn(caller_, std::try_to_lock);
    if (!turn.owns_lock()) {
      work(context, cursor);
      return;
    }
    const int helpers = threads - 1 < kMaxHelpers ? threads - 1 : kMaxHelpers;
    while (started_ < helpers) start_helper();
    work_ = work;
    context_ = context;
    cursor_ = &cursor;
    const uint64_t next = number(state_.load(std::memory_order_relaxed)) + 1;
    state_.store(next << 16 | static_cast<uint64_t>(helpers) << 8 | kOpen);
    if (sleeping_.load() > 0) {
      std::lock_guard<std::mutex> lock(sleep_);
      wake_.notify_all();
    }
    work(context, cursor);
    state_.fetch_and(~kOpen);
    for (int polls = 0; state_.load(std::memory_order_acquire) & kInside; ++polls)
      if (polls < 4096)
        relax();
      else
        sched_yield();
  }

 private:
  void start_helper() {
    // Signals belong to the interpreter's own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this, index = started_] { serve(index); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    ++started_;
  }

  bool offers(uint64_t state, int index, uint64_t last) const {
    return (state & kOpen) != 0 && number(state) != last && index < wanted(state);
  }

  void serve(int index) {
    uint64_t last = 0;
    for (;;) {
      uint64_t state = await(index, last);
      if (!state_.compare_exchange_strong(state, state + 1, std::memory_order_acquire)) continue;
      last = number(state);
      work_(context_, *cursor_);
      state_.fetch_sub(1, std::memory_order_release);
    }
  }

  // The state of a job that this helper may join: polls first, then sleeps.
  uint64_t await(int index, uint64_t last) {
    const auto deadline = std::chrono::steady_clock::now() + kPollTime;
    for (int polls = 1;; ++polls) {
      const uint64_t state = state_.load(std::memory_order_acquire);
      if (offers(state, index, last)) return state;
      relax();
      if (polls % kPollsPerClockRead == 0 && std::chrono::steady_clock::now() > deadline) break;
    }
    std::unique_lock<std::mutex> lock(sleep_);
    sleeping_.fetch_add(1);
    uint64_t state;
    wake_.wait(lock, [&] { return offers(state = state_.load(), index, last); });
    sleeping_.fetch_sub(1);
    return state;
  }

  std::mutex caller_;
  int started_ = 0;
  Work work_ = nullptr;
  const void* context_ = nullptr;
  Cursor* cursor_ = nullptr;
  std::atomic<uint64_t> state_{0};
  std::mutex sleep_;
  std::condition_variable wake_;
  std::atomic<int> sleeping_{0};
};

}  // namespace

void run_team(int threads, Work work, const void* context, Cursor& cursor) {
  // Never destroyed: helpers outlive static destructors.
  static Team* const team = new Team;
  team->run(threads, work, context, cursor);
}

}  // namespace antiphon
