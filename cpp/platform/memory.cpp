#include "memory.hpp"

#if defined(_WIN32)
#include <malloc.h>
#else
#include <sys/mman.h>

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

char* allocate_huge(std::size_t size) {
  char* const memory = allocate_aligned(kHugePage, size);
#if defined(MADV_HUGEPAGE)
  if (memory) madvise(memory, size, MADV_HUGEPAGE);  // advice: where it fails there are small pages
#endif
  return memory;
}

}  // namespace regard
