// The number of threads that a call uses, by precedence: argument > set_num_threads >
// REGARD_NUM_THREADS > OMP_NUM_THREADS > affinity within the quota.
#pragma once

#include <string>

namespace regard {

int default_thread_count();
std::string default_thread_count_reason();

// For calls without an argument; 0 restores the environment's choice.
void set_thread_count(int threads);

// The same for callers that restore a number that they read before, after limiting calls for a
// while: if it is the environment's choice, that choice is restored.
void limit_thread_count(int threads) noexcept;

}  // namespace regard
