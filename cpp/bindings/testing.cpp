#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "../dispatch/attention/int8.hpp"
#include "../dispatch/targets.hpp"
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

// The calling thread finishes at once and waits for a worker, which runs for this many seconds or until it is told
// to stop.
void wait_for_a_worker(double seconds) {
  using std::chrono::steady_clock;
  run_without_gil([&](const StopSignal& signal) {
    std::atomic<bool> begun{false};
    const auto now = steady_clock::now();
    const auto end = now + std::chrono::duration_cast<steady_clock::duration>(
                               std::chrono::duration<double>(seconds));
    parallel_for(2, 2, signal, [&](std::int64_t, Worker& worker) {
      if (worker.thread() != 0) begun = true;
      while (steady_clock::now() < end && !(worker.thread() == 0 ? begun.load() : worker.should_stop()))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  });
}

}  // namespace

void add_test_hooks(py::module_& module) {
  module.def("set_target", &set_target_or_default);
  module.def("set_threading_layer", &exchange_threading_layer);
  module.def("forbid_int8", &forbid_int8);
  module.def("wait_for_a_worker", &wait_for_a_worker);
  module.def("raise_in_parallel_region", &raise_in_parallel_region);
}

}  // namespace regard
