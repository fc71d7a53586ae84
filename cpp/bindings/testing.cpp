#include <stdexcept>
#include <string>

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

}  // namespace

void add_test_hooks(py::module_& module) {
  module.def("set_target", &set_target_or_default);
  module.def("set_threading_layer", &exchange_threading_layer);
  module.def("forbid_int8_instruction", &forbid_int8_instruction);
  module.def("raise_in_parallel_region", &raise_in_parallel_region);
}

}  // namespace regard
