#include "caches.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "text_file.hpp"

#if defined(_WIN32)
#define NOMINMAX
#include <windows.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace regard {
namespace {

constexpr const char* kCacheVariable = "REGARD_L2_CACHE";
constexpr std::int64_t kLeastCache = std::int64_t{128} << 10;
constexpr std::int64_t kUsualCache = std::int64_t{512} << 10;
// A cache larger than this is shared by several processors, or filling more of it would not help.
constexpr std::int64_t kMostCache = std::int64_t{2} << 20;

#if defined(_WIN32)
std::int64_t ask_system() {
  DWORD bytes = 0;
  GetLogicalProcessorInformation(nullptr, &bytes);
  using Row = SYSTEM_LOGICAL_PROCESSOR_INFORMATION;
  std::vector<Row> rows(bytes / sizeof(Row));
  if (!GetLogicalProcessorInformation(rows.data(), &bytes)) return 0;
  for (const Row& row : rows)
    if (row.Relationship == RelationCache && row.Cache.Level == 2) return row.Cache.Size;
  return 0;
}
#elif defined(__APPLE__)
std::int64_t ask_system() {
  for (const char* name : {"hw.perflevel0.l2cachesize", "hw.l2cachesize"}) {
    std::int64_t bytes = 0;
    std::size_t size = sizeof bytes;
    if (sysctlbyname(name, &bytes, &size, nullptr, 0) == 0) return bytes;
  }
  return 0;
}
#else
std::int64_t ask_system() { return l2_cache_of_linux(""); }
#endif

std::int64_t find_l2_cache() {
  if (const char* text = std::getenv(kCacheVariable); text && *text) {
    char* end = nullptr;
    errno = 0;
    const long long bytes = std::strtoll(text, &end, 10);
    if (*end == '\0' && bytes > 0 && errno != ERANGE) return bytes;
    throw std::invalid_argument(std::string(kCacheVariable) +
                                " must be a positive number of bytes, got '" + text + "'");
  }
  std::int64_t bytes = 0;
  try {
    bytes = ask_system();
  } catch (const std::exception&) {  // no memory for reading any file
  }
  return bytes > 0 ? std::clamp(bytes, kLeastCache, kMostCache) : kUsualCache;
}

}  // namespace

std::int64_t l2_cache_bytes() {
  static const std::int64_t bytes = find_l2_cache();
  return bytes;
}

std::int64_t l2_cache_of_linux(const std::string& root) {
  const std::string cpu = root + "/sys/devices/system/cpu/cpu0/cache/index";
  for (int index = 0; index < 8; ++index) {
    const std::string cache = cpu + std::to_string(index);
    const std::string level = read_text(cache + "/level"), size = read_text(cache + "/size");
    const bool is_for_data = !read_text(cache + "/type").starts_with("Instruction");
    std::string_view left = level;
    if (take_number(left) != 2 || !is_for_data) continue;
    left = size;
    const std::int64_t bytes = take_number(left);
    if (bytes > 0) return left.starts_with("M") ? bytes << 20 : left.starts_with("K") ? bytes << 10 : bytes;
  }
  return 0;
}

}  // namespace regard
