#include "starts.hpp"

#include <algorithm>
#include <string>

#include "arguments.hpp"

namespace regard {

Starts starts_of(const char* name, py::handle object) {
  const py::array given = integers_of(name, object, "an array of integers");
  if (given.ndim() != 1 || given.shape(0) < 1)
    throw py::value_error(std::string(name) + " must have shape (sequences + 1,), got shape " +
                          to_text(shape_of(given)));
  if (given.dtype().kind() == 'u') {
    const py::object most = py::module_::import("numpy").attr("max")(given);
    if (most > py::int_(INT64_MAX))
      throw py::value_error(std::string(name) + " must fit in 64 bits, got " +
                            std::string(py::str(most)));
  }
  const py::array_t<std::int64_t, py::array::c_style | py::array::forcecast> numbers(given);
  const Starts starts(numbers.data(), numbers.data() + numbers.size());
  if (starts.front() != 0)
    throw py::value_error(std::string(name) + " must begin with 0, got " +
                          std::to_string(starts.front()));
  for (std::size_t i = 1; i < starts.size(); ++i)
    if (starts[i] < starts[i - 1])
      throw py::value_error(std::string(name) + " must not decrease, got " +
                            std::to_string(starts[i]) + " after " + std::to_string(starts[i - 1]) +
                            " at index " + std::to_string(i));
  return starts;
}

std::int64_t longest(const Starts& starts) {
  std::int64_t most = 0;
  for (std::size_t i = 1; i < starts.size(); ++i) most = std::max(most, starts[i] - starts[i - 1]);
  return most;
}

void check_starts(const char* name, const Starts& starts, const ArrayView& packed) {
  const py::ssize_t total = packed.size(3);
  if (starts.back() != total)
    throw py::value_error(std::string(name) + " must end with the length of " + packed.name + ", " +
                          std::to_string(total) + ", got " + std::to_string(starts.back()));
}

}  // namespace regard
