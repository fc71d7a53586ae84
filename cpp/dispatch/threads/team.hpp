// Threads of an OpenMP runtime, for programs whose other libraries keep its threads too.
//
// A region ends when every thread of its team has arrived. The calling thread therefore waits for those
// that have begun before it ends the region, and answers signals meanwhile.
#pragma once

#include <functional>

#include "region.hpp"

namespace regard {

// From then on teams run in the regions of this library.
void load_region(const ParallelRegion& region);
const ParallelRegion* loaded_region();

// As many, or 1 where no region may begin: within another one, in a child whose runtime does not survive
// forks, and where the system cannot start the threads, for want of which a runtime ends the process.
int available_team(int threads);

// In a child whose parent used a runtime that does not survive forks.
bool is_left_alone();

// As run_together (layer.hpp).
void run_in_team(int threads, const std::function<void(int thread)>& member,
                 const std::function<void()>& while_waiting);

}  // namespace regard
