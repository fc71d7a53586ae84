#include "page_memory.hpp"

#if defined(_WIN32)
#define NOMINMAX
#include <io.h>
#include <windows.h>

#include <algorithm>
#else
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "text_file.hpp"
#endif

namespace regard {

#if defined(_WIN32)

char* map_pages(std::size_t bytes, int descriptor, std::size_t file_bytes) {
  char* const memory =
      static_cast<char*>(VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
  if (!memory || descriptor < 0) return memory;
  bool is_read = _lseeki64(descriptor, 0, SEEK_SET) == 0;
  for (std::size_t at = 0; is_read && at < file_bytes;) {
    const auto wanted = static_cast<unsigned>(std::min<std::size_t>(file_bytes - at, 1u << 30));
    const int got = _read(descriptor, memory + at, wanted);
    is_read = got > 0;
    at += is_read ? static_cast<std::size_t>(got) : 0;
  }
  if (is_read) return memory;
  unmap_pages(memory, bytes);
  return nullptr;
}

void unmap_pages(char* memory, std::size_t) { VirtualFree(memory, 0, MEM_RELEASE); }

// Mapped memory counts as used from the beginning.
std::size_t free_address_space() { return 0; }

std::size_t huge_page_bytes() { return std::size_t{2} << 20; }
void ask_for_huge_pages(char*, std::size_t) {}

#else

namespace {

// Without this flag, Linux counts mapped memory as memory that a forked child may need, and fork
// fails.
#if defined(MAP_NORESERVE)
constexpr int kPrivate = MAP_PRIVATE | MAP_NORESERVE;
#else
constexpr int kPrivate = MAP_PRIVATE;
#endif
constexpr int kReadWrite = PROT_READ | PROT_WRITE;

}  // namespace

char* map_pages(std::size_t bytes, int descriptor, std::size_t file_bytes) {
  void* const memory = mmap(nullptr, bytes, kReadWrite, kPrivate | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
#if defined(__EMSCRIPTEN__)  // a file cannot be mapped to a chosen address
  const auto is_mapped = [&] {
    return pread(descriptor, memory, file_bytes, 0) == static_cast<ssize_t>(file_bytes);
  };
#else
  const auto is_mapped = [&] {
    return mmap(memory, file_bytes, kReadWrite, kPrivate | MAP_FIXED, descriptor, 0) != MAP_FAILED;
  };
#endif
  if (file_bytes == 0 || is_mapped()) return static_cast<char*>(memory);
  munmap(memory, bytes);
  return nullptr;
}

void unmap_pages(char* memory, std::size_t bytes) { munmap(memory, bytes); }

std::size_t free_address_space() {
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY) return 0;
  const std::string policy = read_text("/proc/sys/vm/overcommit_memory");
  if (policy.empty() || policy[0] == '2') return 0;
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t huge_page_bytes() {
  const std::string text = read_text("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
  std::string_view size = text;
  const std::int64_t bytes = take_number(size);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : std::size_t{2} << 20;
}

void ask_for_huge_pages([[maybe_unused]] char* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
  madvise(memory, bytes, MADV_HUGEPAGE);  // only advice: if it fails, the pages are small
#endif
}

#endif

}  // namespace regard
