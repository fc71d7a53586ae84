// The number of forks between the process that first ran several threads and this one.
#pragma once

namespace regard {

// Counts forks from the first call on.
void watch_forks();
int fork_count();

}  // namespace regard
