// The number of processors that this process may use.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace regard {

// The processors that the process may run on, or fewer if its cgroup has a quota; at least 1.
int usable_cpus() noexcept;

// The parts of this function on Linux, with the system's answers as arguments, so that tests can
// simulate machines of other sizes.

// Like sched_getaffinity for the calling process: returns 0, or -1 with errno set.
using GetAffinity = std::function<int(std::size_t bytes, void* mask)>;
// The number of CPUs in the affinity mask, whatever the kernel's maximum; 0 if it cannot be read.
int cpus_of_affinity(const GetAffinity& get_affinity);
// The same from /proc/self/status, which sandboxes often leave readable; `root` is prepended to the
// path.
int cpus_of_status(const std::string& root);
// Whole CPUs, rounded up: with a quota of 1.5, two threads are busy three quarters of the time.
int cpus_within(int cpus, double quota);

}  // namespace regard
