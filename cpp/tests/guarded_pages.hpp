// Memory between two pages that cannot be read or written.
#pragma once

#include <cstddef>

struct GuardedPages {
  char* end;  // of what may be read and written
  // What the system reserved, with the page before and the page after it.
  char* base;
  std::size_t bytes;
};

// At least `used` bytes, or the program ends.
GuardedPages allocate_guarded_pages(std::size_t used);
void free_guarded_pages(const GuardedPages& pages);
