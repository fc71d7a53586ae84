#include "tests.hpp"

#include <stdexcept>

#include "../dispatch/cpu_features.hpp"
#include "testing.hpp"

namespace {

// Whether the CPU has a feature, even if REGARD_DISABLE_CPU_FEATURES disables it.
[[maybe_unused]] bool is_present(std::string_view name) {
  for (const CpuFeature& feature : cpu_features())
    if (feature.name == name) return feature.is_present;
  return false;
}

}  // namespace

void test_cpu_features() {
  check(cpu_has(""), "no features are needed");
  bool is_refused = false;
  try {
    cpu_has("no_such_feature");
  } catch (const std::logic_error&) {
    is_refused = true;
  }
  check(is_refused, "an unknown feature is refused");
#if defined(__x86_64__) && defined(__GLIBC__)
  __builtin_cpu_init();
#define REGARD_FEATURE(name, known) check(is_present(name) == !!__builtin_cpu_supports(known), "the feature " name)
  REGARD_FEATURE("avx2", "avx2");
  REGARD_FEATURE("fma", "fma");
  REGARD_FEATURE("bmi", "bmi");
  REGARD_FEATURE("bmi2", "bmi2");
#if !defined(__clang__)  // Clang does not know these two
  REGARD_FEATURE("f16c", "f16c");
  REGARD_FEATURE("avx_vnni", "avxvnni");
#endif
  REGARD_FEATURE("avx512f", "avx512f");
  REGARD_FEATURE("avx512bw", "avx512bw");
  REGARD_FEATURE("avx512cd", "avx512cd");
  REGARD_FEATURE("avx512dq", "avx512dq");
  REGARD_FEATURE("avx512vl", "avx512vl");
  REGARD_FEATURE("avx512_vnni", "avx512vnni");
#undef REGARD_FEATURE
  check(cpu_is_intel() == (__builtin_cpu_is("intel") != 0), "Intel's CPUs");
#endif
}
