// Memory from the system, in large pages if available.
#pragma once

#include <cstddef>

namespace regard {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Memory that begins at a multiple of `alignment`, a power of two that divides `size`; null if it
// cannot be allocated.
char* allocate_aligned(std::size_t alignment, std::size_t size);
// Frees it; null is ignored.
void free_aligned(char* memory);

// Whole huge pages, if the system provides them: reading them needs fewer address translations.
// `size` is a multiple of kHugePage. Freed memory returns to the system at once, whatever its size
// and the size of its neighbors.
char* allocate_huge(std::size_t size);
void free_huge(char* memory, std::size_t size);

// glibc's malloc takes large blocks from the system and returns them when they are freed. Once a
// program has freed a larger block, malloc keeps them instead, up to twice that size. This function
// allocates and frees a block of `size` without writing to it. Thresholds that the user has set
// (MALLOC_TRIM_THRESHOLD_) stay in effect.
void let_malloc_keep(std::size_t size);

}  // namespace regard
