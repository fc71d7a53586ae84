// How many threads a call uses:
// argument > set_num_threads > REGARD_NUM_THREADS > OMP_NUM_THREADS > affinity within the quota.
#pragma once

#include <string>

namespace regard {

int default_thread_count();
std::string default_thread_count_reason();

// 0 returns to the environment's choice.
void set_thread_count(int threads);

// Within affinity and quota.
int usable_cpus();

}  // namespace regard
