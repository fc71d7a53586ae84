// The size of the cache that kernels plan for.
#pragma once

#include <cstdint>
#include <string>

namespace regard {

// One processor's share of the second cache, from 128 KB to 2 MB; 512 KB where the system does not tell. REGARD_L2_CACHE,
// in bytes, is believed instead. Asked once.
std::int64_t l2_cache_bytes();

// The same without limits from Linux's files under `root`; 0 where they do not tell.
std::int64_t l2_cache_of_system(const std::string& root);

}  // namespace regard
