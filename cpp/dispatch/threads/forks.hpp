// How often the process was forked on the way from the one that first ran several threads to this one.
#pragma once

namespace regard {

// Counts forks from the first call on.
void watch_forks();
int fork_count();

}  // namespace regard
