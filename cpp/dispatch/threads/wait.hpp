// How a thread waits for others: it spins for about the time that waking a thread takes, then
// sleeps.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace regard {

// Waking a sleeping thread takes 10 to 50 us, so a waiting thread spins for about that long before
// it sleeps. Spinning longer would take the core from other programs.
constexpr std::chrono::microseconds kSpin{40};
// While one call is in progress, another is likely to follow at once. A worker with its own core
// spins for up to this long.
constexpr std::chrono::microseconds kSpinBesideWork{1000};
// After this long, a spinning thread yields the processor between checks. The thread that it waits
// for may need it: the system often runs a woken thread on the processor of the thread that woke
// it.
constexpr std::chrono::microseconds kSpinAlone{10};
// Duration of one sleep of a caller.
constexpr std::chrono::milliseconds kWaitingStep{50};

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `done`, for kSpin after the last moment at which `others_work` was true, and for
// kSpinBesideWork at most. True if it is done.
template <class Done, class OthersWork>
bool spin_until(Done done, OthersWork others_work) {
  auto now = std::chrono::steady_clock::now();
  const auto patient = now + kSpinAlone, latest = now + kSpinBesideWork;
  auto end = now + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      pause_briefly();
    }
    if (now >= patient) std::this_thread::yield();
    now = std::chrono::steady_clock::now();
    if (others_work()) end = std::min(now + kSpin, latest);
  } while (now < end);
  return false;
}

}  // namespace regard
