// A file's bytes as memory of the process's own.
#pragma once

#include <cstddef>

namespace regard {

// Memory of `bytes` that begins with the `file_bytes` of an open file and has zeros after them; null with errno set if
// there is none. What is written stays in memory. Where the system can, pages are read when they are first touched.
void* copy_of_file(int descriptor, std::size_t file_bytes, std::size_t bytes);
void free_copy(void* memory, std::size_t bytes);

}  // namespace regard
