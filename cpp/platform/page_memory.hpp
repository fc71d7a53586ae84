// Memory for the pages of caches: address space that the system fills on first use, which may begin
// with the bytes of a file.
#pragma once

#include <cstddef>

namespace regard {

// `bytes` bytes that are 0 and that the system provides on first use; null if they cannot be
// reserved. With a descriptor, they begin with the first `file_bytes` of an open file. If the system
// can, it reads them when they are first touched. Writes stay in memory.
char* map_pages(std::size_t bytes, int descriptor = -1, std::size_t file_bytes = 0);
void unmap_pages(char* memory, std::size_t bytes);

// The bytes that unused mappings may have: the size of the machine's memory, or 0 if the system
// counts them as memory or limits them.
std::size_t free_address_space();

// The size of a huge page. Memory in huge pages is faster to read.
std::size_t huge_page_bytes();
void ask_for_huge_pages(char* memory, std::size_t bytes);

}  // namespace regard
