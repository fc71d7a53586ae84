// Memory from the system, in large pages where it has them to give.
#pragma once

#include <cstddef>

namespace regard {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Memory that begins at a multiple of `alignment`, a power of two of which `size` is a multiple; null if there is none.
char* allocate_aligned(std::size_t alignment, std::size_t size);
// Frees it; null is nothing.
void free_aligned(char* memory);

// Whole huge pages, if the system gives them: reading them costs fewer translations of addresses. `size` is a
// multiple of kHugePage. What is freed goes back to the system at once, whatever its size and that of its
// neighbors.
char* allocate_huge(std::size_t size);
void free_huge(char* memory, std::size_t size);

// glibc's malloc takes large blocks from the system and returns them when they are freed, until a program has freed a
// larger block than these: then it keeps them, up to twice that size. This allocates and frees a block of `size`, which
// nothing writes to. If the user has set the thresholds (MALLOC_TRIM_THRESHOLD_), they stay.
void let_malloc_keep(std::size_t size);

}  // namespace regard
