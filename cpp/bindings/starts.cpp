#include "starts.hpp"

#include <algorithm>
#include <string>

#include "arguments.hpp"

namespace regard {

Starts starts_of(const char* name, py::handle object) {
  const ArrayView given = copied_integers(name, object, "an array of integers");
  if (given.axes() != 1 || given.shape[0] < 1)
    throw py::value_error(std::string(name) + " must have shape (sequences + 1,), got shape " +
                          to_text(given.shape));
  Starts starts(static_cast<std::size_t>(given.shape[0]));
  for (std::size_t i = 0; i < starts.size(); ++i)
    starts[i] = static_cast<const std::int64_t*>(given.data)[static_cast<py::ssize_t>(i) * given.strides[0]];
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
