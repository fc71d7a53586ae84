#include "memory.hpp"

#if defined(_WIN32)
#include <malloc.h>
#else
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#endif

namespace regard {

#if defined(_WIN32)

char* allocate_aligned(std::size_t alignment, std::size_t size) {
  return static_cast<char*>(_aligned_malloc(size, alignment));
}
void free_aligned(char* memory) { _aligned_free(memory); }

#else

char* allocate_aligned(std::size_t alignment, std::size_t size) {
  return static_cast<char*>(std::aligned_alloc(alignment, size));
}
void free_aligned(char* memory) { std::free(memory); }

#endif

#if defined(_WIN32) || defined(__EMSCRIPTEN__)  // no part of a mapping can be released

char* allocate_huge(std::size_t size) { return allocate_aligned(kHugePage, size); }
void free_huge(char* memory, std::size_t) { free_aligned(memory); }

#else

char* allocate_huge(std::size_t size) {
  // One huge page more than requested contains an aligned part; the ends are released.
  const std::size_t reserved = size + kHugePage;
  if (reserved < size) return nullptr;
  void* const mapping =
      mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(mapping);
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) munmap(begin, before);
  char* const memory = begin + before;
  munmap(memory + size, kHugePage - before);
#if defined(MADV_HUGEPAGE)
  madvise(memory, size, MADV_HUGEPAGE);  // only advice: if it fails, the pages are small
#endif
  return memory;
}
void free_huge(char* memory, std::size_t size) {
  if (memory) munmap(memory, size);
}

#endif

void let_malloc_keep(std::size_t size) {
  char* volatile block = allocate_aligned(64, size);  // volatile, or the compiler removes both calls
  free_aligned(block);
}

}  // namespace regard
