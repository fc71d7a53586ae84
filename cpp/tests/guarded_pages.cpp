#include "guarded_pages.hpp"

#include <cstdio>
#include <cstdlib>

#if defined(_WIN32)
#define NOMINMAX
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace {

#if defined(_WIN32)

std::size_t page_bytes() {
  SYSTEM_INFO system;
  GetSystemInfo(&system);
  return system.dwPageSize;
}

char* reserve(std::size_t bytes) {
  return static_cast<char*>(VirtualAlloc(nullptr, bytes, MEM_RESERVE, PAGE_NOACCESS));
}

bool allow(char* memory, std::size_t bytes) {
  return VirtualAlloc(memory, bytes, MEM_COMMIT, PAGE_READWRITE) != nullptr;
}

void release(char* memory, std::size_t) { VirtualFree(memory, 0, MEM_RELEASE); }

#else

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

char* reserve(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

bool allow(char* memory, std::size_t bytes) { return mprotect(memory, bytes, PROT_READ | PROT_WRITE) == 0; }

void release(char* memory, std::size_t bytes) { munmap(memory, bytes); }

#endif

}  // namespace

GuardedPages allocate_guarded_pages(std::size_t used) {
  const std::size_t page = page_bytes();
  const std::size_t body = (used + page - 1) / page * page;
  const std::size_t bytes = body + 2 * page;
  char* const base = reserve(bytes);
  if (!base || (body > 0 && !allow(base + page, body))) {
    std::fprintf(stderr, "guarded memory: the system cannot provide %zu bytes\n", bytes);
    std::abort();
  }
  return {base + page + body, base, bytes};
}

void free_guarded_pages(const GuardedPages& pages) { release(pages.base, pages.bytes); }
