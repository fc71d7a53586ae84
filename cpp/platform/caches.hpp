// The cache size that kernels are planned for.
#pragma once

#include <cstdint>
#include <string>

namespace regard {

// The size of the L2 cache in bytes, limited to 128 KiB to 2 MiB; 512 KiB if the system does not
// report it. REGARD_L2_CACHE overrides it, without limits. Determined once.
std::int64_t l2_cache_bytes();

// As Linux's files under `root` report it, without limits; 0 if they do not.
std::int64_t l2_cache_of_linux(const std::string& root);

}  // namespace regard
