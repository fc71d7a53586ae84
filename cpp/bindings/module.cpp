#include <string>

#include "../dispatch/compute.hpp"
#include "../dispatch/cpu_features.hpp"
#include "../platform/caches.hpp"
#include "../dispatch/targets.hpp"
#include "arguments.hpp"
#include "attention_calls.hpp"
#include "fast_call.hpp"
#include "gil.hpp"
#include "options.hpp"
#include "threading.hpp"

namespace regard {
namespace {

py::list target_rows() {
  py::list rows;
  for (const TargetRow& row : targets()) {
    py::dict entry;
    entry["name"] = row.target->name;
    entry["runnable"] = row.is_runnable;
    entry["needs"] = row.features;
    entry["missing"] = missing_features(row.features);
    entry["vector_bytes"] = row.target->vector_bytes;
    rows.append(entry);
  }
  return rows;
}

// By name: present, disabled (by the environment).
py::dict cpu_feature_rows() {
  py::dict rows;
  for (const CpuFeature& feature : cpu_features())
    rows[py::str(feature.name.data(), feature.name.size())] =
        py::make_tuple(feature.is_present, feature.is_disabled);
  return rows;
}

py::dict build_info() {
  py::dict info;
  info["version"] = REGARD_VERSION;
  info["compiler"] = REGARD_COMPILER;
  info["build_type"] = REGARD_BUILD_TYPE;
  return info;
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
  const std::int64_t size = integer_of("bytes", bytes);
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

}  // namespace
}  // namespace regard

// pybind11's own initialization of the module is called only by the main interpreter: the module
// keeps state for the whole process, and before Python 3.12 pybind11 waits forever for the GIL if a
// subinterpreter imports a module.
//
// No mutable state but atomics: see tests/process/test_threads.py.
#define PyInit__core regard_init_core
PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  using namespace regard;
  module.attr("__version__") = REGARD_VERSION;
  intern_keywords();

  static PyMethodDef functions[] = {
      FastCall<array_of_tensor>::method("array_of_tensor"),
      FastCall<&Calls<output_of>::dense>::method("attention"),
      FastCall<&Calls<checked_of>::dense>::method("check_attention"),
      FastCall<&Calls<plan_of>::dense>::method("attention_plan"),
      FastCall<&Calls<output_of>::ragged>::method("attention_ragged"),
      FastCall<&Calls<checked_of>::ragged>::method("check_attention_ragged"),
      FastCall<&Calls<plan_of>::ragged>::method("attention_ragged_plan"),
      FastCall<&Calls<gradients_of>::dense>::method("attention_backward"),
      FastCall<&Calls<gradients_of>::ragged>::method("attention_ragged_backward"),
      FastCall<&Calls<tangents_of>::dense>::method("attention_jvp"),
      FastCall<&Calls<summary_of>::dense_weights>::method("attention_summary"),
      FastCall<&Calls<map_of>::dense_weights>::method("attention_map"),
      FastCall<&Calls<selected_keys_of>::dense_weights>::method("select_keys"),
      FastCall<&Calls<summary_of>::ragged_weights>::method("attention_ragged_summary"),
      FastCall<linear_attention>::method("linear_attention"),
      FastCall<linear_attention_backward>::method("linear_attention_backward"),
      FastCall<attention_cached>::method("attention_cached"),
      FastCall<attention_cached_plan>::method("attention_cached_plan"),
      FastCall<append_rows>::method("append_rows"),
      FastCall<matmul>::method("matmul"),
      FastCall<matmul_int8>::method("matmul_int8"),
      FastCall<scale>::method("scale"),
      FastCall<apply_mask>::method("apply_mask"),
      FastCall<softmax>::method("softmax"),
      {},
  };
  if (PyModule_AddFunctions(module.ptr(), functions) != 0) throw py::error_already_set();
  module.def("merge_attention_states", &merge_attention_states);
  module.def("quantize_rows", &quantized_rows);
  add_page_tables(module);

  module.def("target_rows", &target_rows);
  module.def("cpu_features", &cpu_feature_rows);
  module.def("active_target", [] { return std::string(active_target().name); });
  module.def("active_target_reason", &active_target_reason);
  module.def("num_threads", [] { return thread_count_of(py::none()); });
  module.def("num_threads_reason", &num_threads_reason);
  module.def("set_num_threads", &set_num_threads);
  module.def("set_threading_layer", &set_threading_layer);
  module.def("threading_layer", &threading_layer_info);
  module.def("better_target", &better_target);
  module.def("l2_cache_bytes", &l2_cache_bytes);
  module.def("build_info", &build_info);
  module.def("fma_peak", &measure_fma_peak);
  module.def("read_bandwidth", &measure_read_bandwidth);

  py::module_ testing = module.def_submodule("testing");
  add_test_hooks(testing);
}
#undef PyInit__core

extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return regard_init_core();
  PyErr_SetString(PyExc_ImportError,
                  "regard._core can be imported only by the main interpreter of a process, got an import in a "
                  "subinterpreter: compute in the main interpreter or in another process");
  return nullptr;
}
