#include "cpus.hpp"

#include <algorithm>

#if defined(_WIN32)
#define NOMINMAX
#include <windows.h>

#include <bitset>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#else
#include <sched.h>

#include <cmath>
#include <fstream>
#endif

namespace regard {
namespace {

#if defined(_WIN32)
int cpus_of_process() {
  DWORD_PTR process = 0, system = 0;
  if (!GetProcessAffinityMask(GetCurrentProcess(), &process, &system)) return 1;
  // Where there are several groups of 64 processors, and threads in more than one of them, both masks are 0.
  if (process == 0) return static_cast<int>(GetActiveProcessorCount(ALL_PROCESSOR_GROUPS));
  return static_cast<int>(std::bitset<64>(process).count());
}
#elif defined(__APPLE__)
// Processors for performance alone, where there are others: equal shares of work would wait for the slow ones.
int cpus_of_process() {
  for (const char* name : {"hw.perflevel0.logicalcpu", "hw.logicalcpu"}) {
    int count = 0;
    std::size_t size = sizeof count;
    if (sysctlbyname(name, &count, &size, nullptr, 0) == 0) return count;
  }
  return 1;
}
#else
// The number of CPUs that a container's quota allows, or a large number if it has none.
double quota() {
  std::ifstream unified("/sys/fs/cgroup/cpu.max");
  double limit = 0, period = 0;
  if (unified >> limit >> period && limit > 0 && period > 0) return limit / period;
  std::ifstream limit_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (limit_file >> limit && period_file >> period && limit > 0 && period > 0)
    return limit / period;
  return 1e9;
}

int cpus_of_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::min(cpus, static_cast<int>(std::ceil(std::min(quota(), 1e6))));
}
#endif

}  // namespace

int usable_cpus() { return std::max(1, cpus_of_process()); }

}  // namespace regard
