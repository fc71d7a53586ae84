// Threads of an OpenMP runtime, for programs in which other libraries use its threads too.
//
// A region ends when every thread of its team has arrived. Before it ends the region, the calling
// thread therefore waits for the threads that have begun, and handles signals while it waits.
#pragma once

#include <functional>

#include "region.hpp"

namespace regard {

// From now on, teams run in the regions of this library.
void load_region(const ParallelRegion& region);
const ParallelRegion* loaded_region();

// Returns `threads`, or 1 if no region may begin: inside another region, in a child whose runtime
// does not survive forks, and if the system cannot start the threads, since a runtime would then
// end the process.
int available_team(int threads);

// Whether this is a child whose parent used a runtime that does not survive forks.
bool is_left_alone();

// As run_together (layer.hpp).
void run_in_team(int threads, const std::function<void(int thread)>& member,
                 const std::function<void()>& while_waiting);

}  // namespace regard
