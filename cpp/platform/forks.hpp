// What is done around fork().
#pragma once

namespace regard {

using AtFork = void (*)();

// From now on, runs these in the process that forks, and in its child; null for nothing. Returns false if it cannot.
// On a system without fork() they are never called.
bool at_fork(AtFork before, AtFork after_in_parent, AtFork after_in_child);

}  // namespace regard
