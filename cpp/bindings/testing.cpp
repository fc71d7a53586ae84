#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <stdexcept>
#include <string>
#include <thread>

#include "../dispatch/attention/int8.hpp"
#include "../dispatch/targets.hpp"
#include "../dispatch/threads/parallel_for.hpp"
#include "../dispatch/threads/scratch.hpp"
#include "../platform/caches.hpp"
#include "../platform/cgroup.hpp"
#include "../platform/cpus.hpp"
#include "bindings.hpp"
#include "gil.hpp"
#include "threading.hpp"

namespace regard {
namespace {

void set_target_or_default(const py::object& name) {
  set_target(name.is_none() ? std::string() : name.cast<std::string>());
}

// Shows how an exception travels from a worker to Python.
void raise_in_parallel_region() {
  run_without_gil([](const StopSignal& signal) {
    parallel_for(2, 8, signal, [](std::int64_t task, Worker&) {
      if (task == 5) throw std::runtime_error("raised in task 5");
    });
  });
}

std::atomic<bool> worker_may_end{false};

// The calling thread raises a signal when a worker has begun. It then finishes and waits for the
// worker, which runs until it is told to stop or let_the_worker_end is called.
void wait_for_a_worker(int number) {
  worker_may_end = false;
  run_without_gil([&](const StopSignal& signal) {
    std::atomic<bool> begun{false};
    parallel_for(2, 2, signal, [&](std::int64_t, Worker& worker) {
      const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
      if (worker.thread() == 0) {
        while (!begun) sleep();
        std::raise(number);
      } else {
        begun = true;
        while (!worker_may_end && !worker.should_stop()) sleep();
      }
    });
  });
}

void let_the_worker_end() { worker_may_end = true; }

py::dict scratch_entry() {
  const ScratchUse use = scratch_use();
  py::dict entry;
  entry["allocations"] = use.allocations;
  entry["bytes"] = use.bytes;
  entry["most_bytes"] = use.most_bytes;
  entry["kept"] = use.kept;
  entry["most_kept"] = use.most_kept;
  return entry;
}

#if defined(__linux__)
// The number of CPUs that regard counts if the kernel was built for `kernel_cpus` and allows the
// last `allowed` of them. With 0 CPUs the call fails, as in a sandbox.
int count_cpus(std::size_t kernel_cpus, std::size_t allowed) {
  return cpus_of_affinity([=](std::size_t bytes, void* mask) {
    errno = kernel_cpus == 0 ? EPERM : EINVAL;
    if (kernel_cpus == 0 || bytes * 8 < kernel_cpus) return -1;
    for (std::size_t cpu = kernel_cpus - allowed; cpu < kernel_cpus; ++cpu)
      static_cast<unsigned char*>(mask)[cpu / 8] |= static_cast<unsigned char>(1 << cpu % 8);
    return 0;
  });
}
#endif

}  // namespace

void add_test_hooks(py::module_& module) {
#if defined(__linux__)
  module.def("count_cpus", &count_cpus);
  module.def("cpus_of_status", &cpus_of_status);
  module.def("l2_cache_of_linux", &l2_cache_of_linux);
  module.def("cpus_within", &cpus_within);
  module.def("cgroup_quota", &cgroup_quota);
#endif
  module.def("set_target", &set_target_or_default);
  module.def("set_threading_layer", &exchange_threading_layer);
  module.def("forbid_int8", &forbid_int8);
  module.def("scratch_use", &scratch_entry);
  module.def("release_scratch", &release_scratch);
  module.def("wait_for_a_worker", &wait_for_a_worker);
  module.def("let_the_worker_end", &let_the_worker_end);
  module.def("looks", &looks);
  module.def("raise_at_look", &raise_at_look);
  module.def("raise_in_parallel_region", &raise_in_parallel_region);
}

}  // namespace regard
