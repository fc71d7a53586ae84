// How a thread waits for others: it spins for about as long as it takes to wake a thread, then sleeps.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace regard {

// Waking a sleeping thread takes 10 to 50 us, so a thread that waits spins for about as long before it
// goes to sleep; spinning longer would take the core from other programs.
constexpr std::chrono::microseconds kSpin{40};
// While one call is under way, another is likely to follow at once. Where each worker has a core to
// itself, it spins for up to this long.
constexpr std::chrono::microseconds kSpinBesideWork{1000};
// After this long a thread that spins lets others have the processor in between. The one that it waits for may be
// among them: the system often puts a thread that it wakes on the processor of the one that woke it.
constexpr std::chrono::microseconds kSpinAlone{10};
// How long a caller sleeps at a time.
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
