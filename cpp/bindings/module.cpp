#include <stdexcept>
#include <string>

#include "../dispatch/attention_int8.hpp"
#include "../dispatch/roofline.hpp"
#include "../dispatch/targets.hpp"
#include "../dispatch/threads/count.hpp"
#include "arguments.hpp"
#include "arrays.hpp"
#include "bindings.hpp"

namespace regard {
namespace {

// True if the kernels can read these as they are: the Python layer's short way.
bool are_native(py::handle query, py::handle key, py::handle value, py::handle mask) {
  return is_native(query, Accepts::storage) && is_native(key, Accepts::storage) &&
         is_native(value, Accepts::storage) &&
         (mask.is_none() || is_native(mask, Accepts::mask));
}

py::list target_rows() {
  py::list rows;
  for (const TargetRow& row : targets()) {
    py::dict entry;
    entry["name"] = row.target->name;
    entry["runnable"] = row.is_runnable;
    entry["needs"] = row.features;
    entry["vector_bytes"] = row.target->vector_bytes;
    rows.append(entry);
  }
  return rows;
}

py::dict build_info() {
  py::dict info;
  info["version"] = REGARD_VERSION;
  info["compiler"] = REGARD_COMPILER;
  info["build_type"] = REGARD_BUILD_TYPE;
  return info;
}

void set_num_threads(py::handle threads) {
  if (threads.is_none())
    set_thread_count(0);
  else
    set_thread_count(thread_count_of(threads));
}

double measure_fma_peak(bool is_double, py::handle threads) {
  const int count = thread_count_of(threads);
  double peak = 0;
  run_without_gil([&](const StopSignal& signal) {
    peak = fma_peak(is_double ? Scalar::float64 : Scalar::float32, count, signal);
  });
  return peak;
}

double measure_read_bandwidth(py::handle bytes, py::handle threads) {
  const std::int64_t size = whole_number_of("bytes", bytes);
  const int count = thread_count_of(threads);
  if (size < kReadStep * count)
    throw py::value_error("bytes must be at least " + std::to_string(kReadStep) +
                          " for each of the " + std::to_string(count) + " threads, got " +
                          std::to_string(size));
  double bandwidth = 0;
  run_without_gil(
      [&](const StopSignal& signal) { bandwidth = read_bandwidth(size, count, signal); });
  return bandwidth;
}

// For the tests: how an exception travels from a worker to Python.
void raise_in_parallel_region() {
  run_without_gil([](const StopSignal& signal) {
    parallel_for(2, 8, signal, [](std::int64_t task, Worker&) {
      if (task == 5) throw std::runtime_error("raised in task 5");
    });
  });
}

}  // namespace
}  // namespace regard

// No mutable state but atomics: see tests/test_threads_and_signals.py.
PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  using namespace regard;
  module.attr("__version__") = REGARD_VERSION;

  module.def("are_native", &are_native);
  module.def("attention", &attention);
  module.def("attention_ragged", &attention_ragged);
  module.def("attention_cached", &attention_cached);
  module.def("attention_cached_plan", &attention_cached_plan);
  module.def("attention_plan", &attention_plan);
  module.def("matmul", &matmul);
  module.def("scale", &scale);
  module.def("apply_mask", &apply_mask);
  module.def("softmax", &softmax);
  module.def("are_states", &are_states);
  module.def("merge_attention_states", &merge_attention_states);
  module.def("quantise_rows", &quantise_rows);
  py::class_<PageRows>(module, "PageRows")
      .def(py::init<py::handle, py::handle, py::handle, py::handle>())
      .def("store_plain", &PageRows::store_plain)
      .def("store", &PageRows::store);
  module.def("map_copy", &map_copy);

  module.def("target_rows", &target_rows);
  module.def("active_target", [] { return std::string(active_target().name); });
  module.def("active_target_reason", &active_target_reason);
  module.def("set_target", [](const py::object& name) {
    set_target(name.is_none() ? std::string() : name.cast<std::string>());
  });
  module.def("num_threads", &default_thread_count);
  module.def("num_threads_reason", &default_thread_count_reason);
  module.def("set_num_threads", &set_num_threads);
  module.def("build_info", &build_info);
  module.def("fma_peak", &measure_fma_peak);
  module.def("read_bandwidth", &measure_read_bandwidth);
  module.def("_forbid_int8_instruction", &forbid_int8_instruction);
  module.def("_raise_in_parallel_region", &raise_in_parallel_region);
}
