// How many processors the system lets this process use.
#pragma once

namespace regard {

// Those that it may run on, or fewer where a container has a quota; at least 1.
int usable_cpus();

}  // namespace regard
