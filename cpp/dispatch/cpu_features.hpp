// What this CPU has and this operating system has switched on.
#pragma once

#include <string_view>

namespace regard {

// True if every word of `features` (separated by spaces) is available.
bool cpu_has(std::string_view features);

}  // namespace regard
