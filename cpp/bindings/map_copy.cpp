// A file's bytes as memory of our own, with room after them.
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#include "bindings.hpp"

namespace regard {
namespace {

struct Mapping {
  void* start;
  std::size_t bytes;
};

[[noreturn]] void throw_os_error(int code) {
  errno = code;
  PyErr_SetFromErrno(PyExc_OSError);
  throw py::error_already_set();
}

}  // namespace

py::array map_copy(int descriptor, std::int64_t file_bytes, std::int64_t bytes) {
  if (file_bytes < 0 || bytes < file_bytes || bytes == 0)
    throw py::value_error("bytes must be at least 1 and file_bytes, got " + std::to_string(bytes) +
                          " and " + std::to_string(file_bytes));
  const std::size_t size = static_cast<std::size_t>(bytes);
  void* start = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                     -1, 0);
  if (start == MAP_FAILED) throw_os_error(errno);
  auto* mapping = new Mapping{start, size};
  const py::capsule owner(mapping, [](void* object) {
    auto* mapped = static_cast<Mapping*>(object);
    munmap(mapped->start, mapped->bytes);
    delete mapped;
  });
  if (file_bytes > 0 &&
      mmap(start, static_cast<std::size_t>(file_bytes), PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, descriptor, 0) == MAP_FAILED)
    throw_os_error(errno);
  return py::array_t<std::uint8_t>({static_cast<py::ssize_t>(bytes)}, {1},
                                   static_cast<std::uint8_t*>(start), owner);
}

}  // namespace regard
