// How many threads a call uses:
// argument > set_num_threads > REGARD_NUM_THREADS > OMP_NUM_THREADS > affinity within the quota.
#pragma once

#include <string>

namespace regard {

int default_thread_count();
std::string default_thread_count_reason();

// For calls without an argument; 0 restores the environment's choice.
void set_thread_count(int threads);

// The same for who sets a number that was read before, to limit calls for a while: where it is the
// environment's choice, that is restored.
void limit_thread_count(int threads) noexcept;

}  // namespace regard
