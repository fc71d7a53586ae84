#include "cpu_features.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <stdexcept>

namespace regard {
namespace {

#if defined(__x86_64__)

constexpr std::string_view kArchitecture = "x86_64";

// Not __builtin_cpu_supports: the known names differ between compilers, and clang-cl and Zig do not
// link its run-time support.

enum Register { kEax, kEbx, kEcx, kEdx };

struct Feature {
  std::string_view name;
  unsigned leaf, subleaf;
  Register in;
  unsigned bit;
  int vector_bytes;  // of the registers that the system must save for it
};

// Features that the compiler may use in any source, so that no run can do without them.
constexpr std::string_view kBaseline = " mmx sse sse2 fxsr cx8 cmov ";
constexpr Feature kFeatures[] = {
    {"fma", 1, 0, kEcx, 12, 32},       {"f16c", 1, 0, kEcx, 29, 32},         {"bmi", 7, 0, kEbx, 3, 0},
    {"avx2", 7, 0, kEbx, 5, 32},       {"bmi2", 7, 0, kEbx, 8, 0},           {"avx512f", 7, 0, kEbx, 16, 64},
    {"avx512dq", 7, 0, kEbx, 17, 64},  {"avx512cd", 7, 0, kEbx, 28, 64},     {"avx512bw", 7, 0, kEbx, 30, 64},
    {"avx512vl", 7, 0, kEbx, 31, 64},  {"avx512_vnni", 7, 0, kEcx, 11, 64},  {"avx_vnni", 7, 1, kEax, 4, 32},
    {"avx512_bf16", 7, 1, kEax, 5, 64},
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
  // Volatile: otherwise GCC moves the instruction above the test for its presence.
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr std::uint32_t kSse = 1u << 1, kAvx = 1u << 2, kAvx512 = 7u << 5;
#if defined(__APPLE__)
  const bool is_wide = false;  // macOS saves the AVX-512 registers from their first use on, and reports it only then
#else
  const bool is_wide = vector_bytes == 64;
#endif
  const std::uint32_t needed = kSse | kAvx | (is_wide ? kAvx512 : 0u);
  return (low & needed) == needed;
}

bool says_intel() {
  unsigned most = 0, genu = 0, ntel = 0, inei = 0;
  return __get_cpuid(0, &most, &genu, &ntel, &inei) != 0 && genu == signature_INTEL_ebx && inei == signature_INTEL_edx &&
         ntel == signature_INTEL_ecx;
}

bool cpu_and_system_have(const Feature& feature) {
  return has_bit(feature.leaf, feature.subleaf, feature.in, feature.bit) &&
         system_saves(feature.vector_bytes);
}

#else

struct Feature {
  std::string_view name;
};
#if defined(__aarch64__)
constexpr std::string_view kArchitecture = "aarch64";
constexpr std::string_view kBaseline = " fp asimd neon ";
constexpr std::span<const Feature> kFeatures;
#elif defined(__wasm32__)
constexpr std::string_view kArchitecture = "wasm32";
constexpr std::string_view kBaseline = "";
constexpr Feature kFeatures[] = {{"simd128"}};  // an engine without it rejects the whole module
#else
constexpr std::string_view kArchitecture = "any";
constexpr std::string_view kBaseline = "";
constexpr std::span<const Feature> kFeatures;
#endif
bool says_intel() { return false; }
bool cpu_and_system_have(const Feature&) { return true; }

#endif

constexpr const char* kVariable = "REGARD_DISABLE_CPU_FEATURES";
constexpr std::string_view kSeparators = " ,\t\n";

// Removes the first word from `words` and returns it; empty if none is left.
std::string_view next_word(std::string_view& words) {
  words.remove_prefix(std::min(words.find_first_not_of(kSeparators), words.size()));
  const std::string_view word = words.substr(0, words.find_first_of(kSeparators));
  words.remove_prefix(word.size());
  return word;
}

[[noreturn]] void refuse(std::string_view word) {
  std::string known;
  for (const Feature& feature : kFeatures) known += (known.empty() ? "" : " ") + std::string(feature.name);
  const bool is_baseline = kBaseline.find(" " + std::string(word) + " ") != std::string_view::npos;
  throw std::invalid_argument(
      std::string(kVariable) +
      (known.empty() ? " must be empty on this architecture, whose features are all part of the baseline"
                     : " must name features that can be disabled (" + known + ")") +
      ", got '" + std::string(word) + "'" + (is_baseline ? ", which every target needs" : ""));
}

std::vector<CpuFeature> read_features() {
  std::vector<CpuFeature> features;
  for (const Feature& feature : kFeatures)
    features.push_back({feature.name, cpu_and_system_have(feature), false});
  const char* const disabled = std::getenv(kVariable);
  std::string_view words = disabled ? disabled : "";
  for (std::string_view word = next_word(words); !word.empty(); word = next_word(words)) {
    const auto found = std::find_if(features.begin(), features.end(),
                                    [&](const CpuFeature& feature) { return feature.name == word; });
    if (found == features.end()) refuse(word);
    found->is_disabled = true;
  }
  return features;
}

}  // namespace

const std::vector<CpuFeature>& cpu_features() {
  // Read once: in a virtual machine each query costs microseconds. Never destroyed: threads may
  // compute while the process exits.
  static const auto& features = *new std::vector<CpuFeature>(read_features());
  return features;
}

std::string missing_features(std::string_view needed) {
  std::string missing;
  const auto& features = cpu_features();
  for (std::string_view word = next_word(needed); !word.empty(); word = next_word(needed)) {
    const auto found = std::find_if(features.begin(), features.end(),
                                    [&](const CpuFeature& feature) { return feature.name == word; });
    if (found == features.end()) throw std::logic_error("unknown CPU feature: " + std::string(word));
    if (found->is_available()) continue;
    missing += (missing.empty() ? "" : ", ") + std::string(word);
    if (found->is_present) missing += " (disabled by " + std::string(kVariable) + ")";
  }
  return missing;
}

bool cpu_has(std::string_view needed) { return missing_features(needed).empty(); }

bool cpu_runs(std::string_view architecture, std::string_view needed) {
  return (architecture == "any" || architecture == kArchitecture) && cpu_has(needed);
}

bool cpu_is_intel() {
  static const bool is_intel = says_intel();
  return is_intel;
}

}  // namespace regard
