#include "cpu_features.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>

namespace regard {
namespace {

#if defined(__x86_64__)

// Not __builtin_cpu_supports: each compiler knows other names, and clang-cl and Zig do not link what answers it.

enum Register { kEax, kEbx, kEcx, kEdx };

struct Feature {
  std::string_view name;
  unsigned leaf, subleaf;
  Register in;
  unsigned bit;
  int vector_bytes;  // of the registers that the system must save for it
};

constexpr Feature kFeatures[] = {
    {"fma", 1, 0, kEcx, 12, 32},       {"f16c", 1, 0, kEcx, 29, 32},         {"bmi", 7, 0, kEbx, 3, 0},
    {"avx2", 7, 0, kEbx, 5, 32},       {"bmi2", 7, 0, kEbx, 8, 0},           {"avx512f", 7, 0, kEbx, 16, 64},
    {"avx512dq", 7, 0, kEbx, 17, 64},  {"avx512cd", 7, 0, kEbx, 28, 64},     {"avx512bw", 7, 0, kEbx, 30, 64},
    {"avx512vl", 7, 0, kEbx, 31, 64},  {"avx512_vnni", 7, 0, kEcx, 11, 64},  {"avx_vnni", 7, 1, kEax, 4, 32},
};

bool has_bit(unsigned leaf, unsigned subleaf, Register in, unsigned bit) {
  std::array<unsigned, 4> registers{};
  return __get_cpuid_count(leaf, subleaf, &registers[kEax], &registers[kEbx], &registers[kEcx], &registers[kEdx]) != 0 &&
         (registers[in] >> bit & 1u) != 0;
}

bool system_saves(int vector_bytes) {
  if (vector_bytes == 0) return true;
  constexpr unsigned kXsaveBit = 27;
  if (!has_bit(1, 0, kEcx, kXsaveBit)) return false;
  std::uint32_t low = 0, high = 0;
  // Volatile: without it GCC moves the instruction above the test that the CPU has it.
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr std::uint32_t kSse = 1u << 1, kAvx = 1u << 2, kAvx512 = 7u << 5;
#if defined(__APPLE__)
  const bool is_wide = false;  // macOS saves the registers of AVX-512 from their first use on, and says so from then
#else
  const bool is_wide = vector_bytes == 64;
#endif
  const std::uint32_t needed = kSse | kAvx | (is_wide ? kAvx512 : 0u);
  return (low & needed) == needed;
}

using Available = std::array<bool, std::size(kFeatures)>;

Available read_features() {
  Available available{};
  for (std::size_t i = 0; i < available.size(); ++i) {
    const Feature& feature = kFeatures[i];
    available[i] =
        has_bit(feature.leaf, feature.subleaf, feature.in, feature.bit) && system_saves(feature.vector_bytes);
  }
  return available;
}

#endif

bool cpu_has_one(std::string_view feature) {
#if defined(__x86_64__)
  static const Available available = read_features();  // once: in a virtual machine each question costs microseconds
  for (std::size_t i = 0; i < available.size(); ++i)
    if (feature == kFeatures[i].name) return available[i];
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
