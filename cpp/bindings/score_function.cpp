#include "score_function.hpp"

#include <cstdint>
#include <string>

#include "arguments.hpp"

namespace regard {

ScoreFunctionView score_function_of(py::handle object) {
  if (!py::hasattr(object, "derivative_address"))
    throw py::type_error("score_function must be a regard.ScoreFunction, got " + kind_of(object) +
                         ": wrap a compiled function in one");
  const auto address = [&](const char* name) {
    return reinterpret_cast<void*>(object.attr(name).cast<std::uintptr_t>());
  };
  ScoreFunctionView view;
  view.object = py::reinterpret_borrow<py::object>(object);
  view.scalar = object.attr("dtype").attr("itemsize").cast<int>() == 8 ? Scalar::float64 : Scalar::float32;
  view.function = {address("address"), address("derivative_address"), address("user_data_address")};
  return view;
}

}  // namespace regard
