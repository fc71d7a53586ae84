// The quota of CPU time that Linux gives a process through its cgroups.
#pragma once

#include <string>

namespace regard {

// In CPUs: the least quota of the process's cgroup and of the groups that contain it, in version 1 and
// version 2 of cgroups; infinity without one. `root` precedes every path that is read: it is empty
// except in tests.
double cgroup_quota(const std::string& root);

}  // namespace regard
