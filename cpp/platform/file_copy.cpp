#include "file_copy.hpp"

#if defined(_WIN32)
#define NOMINMAX
#include <io.h>
#include <windows.h>

#include <algorithm>
#else
#include <sys/mman.h>
#endif

#include <cerrno>

namespace regard {

#if defined(_WIN32)

void* copy_of_file(int descriptor, std::size_t file_bytes, std::size_t bytes) {
  char* const memory = static_cast<char*>(VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
  if (!memory) {
    errno = ENOMEM;
    return nullptr;
  }
  bool is_read = _lseeki64(descriptor, 0, SEEK_SET) == 0;
  for (std::size_t at = 0; is_read && at < file_bytes;) {
    const auto wanted = static_cast<unsigned>(std::min<std::size_t>(file_bytes - at, 1u << 30));
    const int got = _read(descriptor, memory + at, wanted);
    if (got == 0) errno = EIO;  // the file is shorter than it was
    is_read = got > 0;
    at += is_read ? static_cast<std::size_t>(got) : 0;
  }
  if (is_read) return memory;
  free_copy(memory, bytes);
  return nullptr;
}

void free_copy(void* memory, std::size_t) { VirtualFree(memory, 0, MEM_RELEASE); }

#else

void* copy_of_file(int descriptor, std::size_t file_bytes, std::size_t bytes) {
#if defined(MAP_NORESERVE)
  constexpr int kKind = MAP_PRIVATE | MAP_NORESERVE;
#else
  constexpr int kKind = MAP_PRIVATE;
#endif
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kKind | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (file_bytes > 0 &&
      mmap(memory, file_bytes, PROT_READ | PROT_WRITE, kKind | MAP_FIXED, descriptor, 0) == MAP_FAILED) {
    const int code = errno;
    munmap(memory, bytes);
    errno = code;
    return nullptr;
  }
  return memory;
}

void free_copy(void* memory, std::size_t bytes) { munmap(memory, bytes); }

#endif

}  // namespace regard
