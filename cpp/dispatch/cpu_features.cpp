#include "cpu_features.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <stdexcept>
#include <string>

namespace regard {
namespace {

#if defined(__x86_64__)
// Clang 14's builtin does not know f16c. The check for AVX2 also covers whether the system saves the registers.
bool cpu_has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// Later versions of GCC's and Clang's builtin know it.
bool cpu_has_avxvnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & 1u << 4) != 0;
}
#endif

bool cpu_has_one(std::string_view feature) {
#if defined(__x86_64__)
  if (feature == "f16c") return cpu_has_f16c();
  if (feature == "avx_vnni") return cpu_has_avxvnni();
  __builtin_cpu_init();
  if (feature == "avx512_vnni") return __builtin_cpu_supports("avx512vnni");
#define REGARD_FEATURE(name) \
  if (feature == name) return __builtin_cpu_supports(name)
  REGARD_FEATURE("avx2");
  REGARD_FEATURE("fma");
  REGARD_FEATURE("bmi");
  REGARD_FEATURE("bmi2");
  REGARD_FEATURE("avx512f");
  REGARD_FEATURE("avx512bw");
  REGARD_FEATURE("avx512cd");
  REGARD_FEATURE("avx512dq");
  REGARD_FEATURE("avx512vl");
#undef REGARD_FEATURE
#endif
  throw std::logic_error("unknown CPU feature: " + std::string(feature));
}

}  // namespace

bool cpu_has(std::string_view features) {
  while (!features.empty()) {
    const std::size_t space = features.find(' ');
    if (!cpu_has_one(features.substr(0, space))) return false;
    features.remove_prefix(space == std::string_view::npos ? features.size() : space + 1);
  }
  return true;
}

}  // namespace regard
