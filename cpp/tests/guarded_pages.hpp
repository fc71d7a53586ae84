// Memory between two pages that cannot be read or written.
#pragma once

#include <cstddef>

struct GuardedPages {
  char* end;  // of the accessible memory
  // The reserved memory, including the page before and the page after it.
  char* base;
  std::size_t bytes;
};

// Allocates at least `used` bytes; ends the program on failure.
GuardedPages allocate_guarded_pages(std::size_t used);
void free_guarded_pages(const GuardedPages& pages);
