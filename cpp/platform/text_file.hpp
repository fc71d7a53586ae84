// Text files that describe the machine, as Linux provides them under /proc and /sys.
//
// They are read with C functions, not with streams: a stream finds its facets by numbers that all
// copies of libstdc++ in a process share, and a copy of another version that is linked into this
// module has them in other places.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace regard {

// The whole text; empty if the file cannot be read.
std::string read_text(const std::string& path);

// The parts of a text between separators. A separator at the end begins no part.
std::vector<std::string> split(std::string_view text, char separator);

// The integer at the beginning of a text, after spaces; 0 if there is none. `text` keeps the
// remainder.
std::int64_t take_number(std::string_view& text);

}  // namespace regard
