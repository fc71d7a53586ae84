// How many processors the system lets this process use.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace regard {

// Those that it may run on, or fewer if its cgroup has a quota; at least 1.
int usable_cpus() noexcept;

// The parts of which this is made on Linux, as functions of what the system says, so that tests can
// show them machines of other sizes.

// As sched_getaffinity for the calling process: 0, or -1 and errno.
using GetAffinity = std::function<int(std::size_t bytes, void* mask)>;
// The number of CPUs in the affinity mask, however many the kernel knows; 0 if it cannot be read.
int cpus_of_affinity(const GetAffinity& get_affinity);
// The same from /proc/self/status, which sandboxes often leave readable; `root` precedes the path.
int cpus_of_status(const std::string& root);
// Whole CPUs, rounded up: with a quota of 1.5, two threads are busy for three quarters of the time.
int cpus_within(int cpus, double quota);

}  // namespace regard
