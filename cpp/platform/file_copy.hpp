// A file's bytes as private memory of the process.
#pragma once

#include <cstddef>

namespace regard {

// Memory of `bytes` bytes that begins with the `file_bytes` of an open file, followed by zeros;
// null with errno set if it cannot be allocated. Writes stay in memory. If the system can, it reads
// pages when they are first touched.
void* copy_of_file(int descriptor, std::size_t file_bytes, std::size_t bytes);
void free_copy(void* memory, std::size_t bytes);

}  // namespace regard
