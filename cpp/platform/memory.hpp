// Memory from the system, in large pages where it has them to give.
#pragma once

#include <cstddef>

namespace regard {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Memory that begins at a multiple of `alignment`, a power of two of which `size` is a multiple; null if there is none.
char* allocate_aligned(std::size_t alignment, std::size_t size);
// Frees it; null is nothing.
void free_aligned(char* memory);

// The same in huge pages, if the system gives them: reading them costs fewer translations of addresses.
char* allocate_huge(std::size_t size);

}  // namespace regard
