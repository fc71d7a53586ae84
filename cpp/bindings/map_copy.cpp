// A file's bytes as private memory, with room after them.
#include <cstdint>
#include <memory>
#include <string>

#include "../platform/file_copy.hpp"
#include "bindings.hpp"

namespace regard {
namespace {

struct Mapping {
  void* start = nullptr;
  std::size_t bytes = 0;
  ~Mapping() {
    if (start) free_copy(start, bytes);
  }
};

}  // namespace

py::array map_copy(int descriptor, std::int64_t file_bytes, std::int64_t bytes) {
  if (file_bytes < 0 || bytes < file_bytes || bytes == 0)
    throw py::value_error("bytes must be at least 1 and file_bytes, got " + std::to_string(bytes) +
                          " and " + std::to_string(file_bytes));
  const std::size_t size = static_cast<std::size_t>(bytes);
  auto mapping = std::make_unique<Mapping>();
  void* const start = copy_of_file(descriptor, static_cast<std::size_t>(file_bytes), size);
  if (!start) {
    PyErr_SetFromErrno(PyExc_OSError);
    throw py::error_already_set();
  }
  mapping->start = start;
  mapping->bytes = size;
  const py::capsule owner(mapping.get(), [](void* object) { delete static_cast<Mapping*>(object); });
  mapping.release();
  return py::array_t<std::uint8_t>({static_cast<py::ssize_t>(bytes)}, {1},
                                   static_cast<std::uint8_t*>(start), owner);
}

}  // namespace regard
