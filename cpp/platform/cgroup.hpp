// The CPU time quota that Linux assigns to a process through its cgroups.
#pragma once

#include <string>

namespace regard {

// The smallest quota, in CPUs, of the process's cgroup and of the groups that contain it, in
// versions 1 and 2 of cgroups; infinity without a quota. `root` is prepended to every path that is
// read; it is empty except in tests.
double cgroup_quota(const std::string& root);

}  // namespace regard
