#include "cpus.hpp"

#include <algorithm>
#include <cstdlib>

#if defined(_WIN32)
#define NOMINMAX
#include <windows.h>

#include <bitset>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif !defined(__EMSCRIPTEN__)
#include <sched.h>
#include <unistd.h>

#include <bitset>
#include <cerrno>
#include <cmath>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "cgroup.hpp"
#include "text_file.hpp"
#endif

namespace regard {
namespace {

#if defined(_WIN32)
int cpus_of_process() {
  DWORD_PTR process = 0, system = 0;
  if (!GetProcessAffinityMask(GetCurrentProcess(), &process, &system)) return 1;
  // If there are several groups of 64 processors and threads in more than one of them, both masks
  // are 0.
  if (process == 0) return static_cast<int>(GetActiveProcessorCount(ALL_PROCESSOR_GROUPS));
  return static_cast<int>(std::bitset<64>(process).count());
}
#elif defined(__APPLE__)
// Counts only performance processors, if there are others: with equal shares, work would wait for
// the slow processors.
int cpus_of_process() {
  for (const char* name : {"hw.perflevel0.logicalcpu", "hw.logicalcpu"}) {
    int count = 0;
    std::size_t size = sizeof count;
    if (sysctlbyname(name, &count, &size, nullptr, 0) == 0) return count;
  }
  return 1;
}
#elif defined(__EMSCRIPTEN__)
int cpus_of_process() { return 1; }  // a module of Pyodide cannot start threads
#else
int online_cpus() { return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); }

// Reading the quota's files takes longer than a small call; it changes only if the process moves to
// another cgroup.
double quota_of_process() {
  static const double quota = cgroup_quota("");
  return quota;
}

int cpus_of_process() {
  try {
    int cpus = cpus_of_affinity([](std::size_t bytes, void* mask) {
      return sched_getaffinity(0, bytes, static_cast<cpu_set_t*>(mask));
    });
    if (cpus < 1) cpus = cpus_of_status("");
    if (cpus < 1) cpus = online_cpus();
    return cpus_within(cpus, quota_of_process());
  } catch (const std::exception&) {
    return online_cpus();  // no memory for reading any file
  }
}
#endif

}  // namespace

int usable_cpus() noexcept { return std::max(1, cpus_of_process()); }

#if !defined(_WIN32) && !defined(__APPLE__) && !defined(__EMSCRIPTEN__)

int cpus_of_affinity(const GetAffinity& get_affinity) {
  // The kernel rejects a mask with fewer bits than the number of CPUs that it was built for.
  constexpr std::size_t kMostCpus = std::size_t{1} << 20;
  for (std::size_t cpus = CPU_SETSIZE; cpus <= kMostCpus; cpus *= 2) {
    std::vector<unsigned long> mask(cpus / (8 * sizeof(unsigned long)));
    if (get_affinity(cpus / 8, mask.data()) == 0) {
      std::size_t count = 0;
      for (const unsigned long word : mask) count += std::bitset<8 * sizeof word>(word).count();
      return static_cast<int>(count);
    }
    if (errno != EINVAL) return 0;
  }
  return 0;
}

int cpus_of_status(const std::string& root) {
  constexpr std::string_view kName = "Cpus_allowed_list:";
  for (const std::string& line : split(read_text(root + "/proc/self/status"), '\n')) {
    if (!line.starts_with(kName)) continue;
    const char* at = line.c_str() + kName.size();  // a list such as 0-3,8,10-11
    long count = 0;
    while (*at != '\0') {
      char* end = nullptr;
      const long first = std::strtol(at, &end, 10);
      if (end == at) return 0;
      const long last = *end == '-' ? std::strtol(end + 1, &end, 10) : first;
      count += last - first + 1;
      at = *end == ',' ? end + 1 : end;
      if (*end != ',' && *end != '\0') return 0;
    }
    return static_cast<int>(count);
  }
  return 0;
}

int cpus_within(int cpus, double quota) {
  return std::max(1, static_cast<int>(std::min(static_cast<double>(cpus), std::ceil(quota))));
}

#endif

}  // namespace regard
