// Actions around fork().
#pragma once

namespace regard {

using AtFork = void (*)();

// Registers functions to run in the process that forks and in its child; null for none. Returns
// false on failure. On a system without fork() they are never called.
bool at_fork(AtFork before, AtFork after_in_parent, AtFork after_in_child);

// The number of forks between the first call of watch_forks, which begins to count, and now.
void watch_forks();
int fork_count();

}  // namespace regard
