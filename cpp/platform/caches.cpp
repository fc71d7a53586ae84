#include "caches.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <vector>

#if defined(_WIN32)
#define NOMINMAX
#include <windows.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace regard {
namespace {

constexpr const char* kCacheVariable = "REGARD_L2_CACHE";
constexpr std::int64_t kLeastCache = std::int64_t{128} << 10, kUsualCache = std::int64_t{512} << 10;
// A cache larger than this is shared by several processors, or would be filled with more than helps.
constexpr std::int64_t kMostCache = std::int64_t{2} << 20;

#if defined(_WIN32)
std::int64_t l2_cache_of_process() {
  DWORD bytes = 0;
  GetLogicalProcessorInformation(nullptr, &bytes);
  std::vector<SYSTEM_LOGICAL_PROCESSOR_INFORMATION> rows(bytes / sizeof(SYSTEM_LOGICAL_PROCESSOR_INFORMATION));
  if (!GetLogicalProcessorInformation(rows.data(), &bytes)) return 0;
  for (const auto& row : rows)
    if (row.Relationship == RelationCache && row.Cache.Level == 2) return row.Cache.Size;
  return 0;
}
#elif defined(__APPLE__)
std::int64_t l2_cache_of_process() {
  for (const char* name : {"hw.perflevel0.l2cachesize", "hw.l2cachesize"}) {
    std::int64_t bytes = 0;
    std::size_t size = sizeof bytes;
    if (sysctlbyname(name, &bytes, &size, nullptr, 0) == 0) return bytes;
  }
  return 0;
}
#else
std::int64_t l2_cache_of_process() { return l2_cache_of_system(""); }
#endif

std::int64_t ask_for_l2_cache() {
  if (const char* text = std::getenv(kCacheVariable); text && *text) {
    char* end = nullptr;
    const long long bytes = std::strtoll(text, &end, 10);
    if (*end == '\0' && bytes > 0) return bytes;
    throw std::invalid_argument(std::string(kCacheVariable) + " must be a positive number of bytes, got '" + text + "'");
  }
  std::int64_t bytes = 0;
  try {
    bytes = l2_cache_of_process();
  } catch (const std::exception&) {  // no memory for reading any file
  }
  return bytes > 0 ? std::clamp(bytes, kLeastCache, kMostCache) : kUsualCache;
}

}  // namespace

std::int64_t l2_cache_bytes() {
  static const std::int64_t bytes = ask_for_l2_cache();
  return bytes;
}

std::int64_t l2_cache_of_system(const std::string& root) {
  const std::string cpu = root + "/sys/devices/system/cpu/cpu0/cache/index";
  for (int index = 0; index < 8; ++index) {
    const std::string cache = cpu + std::to_string(index);
    int level = 0;
    std::int64_t size = 0;
    std::string unit, type;
    std::ifstream(cache + "/level") >> level;
    std::ifstream(cache + "/type") >> type;
    std::ifstream(cache + "/size") >> size >> unit;
    if (level == 2 && type != "Instruction" && size > 0)
      return unit == "M" ? size << 20 : unit == "K" ? size << 10 : size;
  }
  return 0;
}

}  // namespace regard
