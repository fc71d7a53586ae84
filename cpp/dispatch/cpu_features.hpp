// What this CPU has, this operating system has switched on, and REGARD_DISABLE_CPU_FEATURES leaves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace regard {

struct CpuFeature {
  std::string_view name;
  bool is_present;   // in the CPU, and its registers are saved by the system
  bool is_disabled;  // by REGARD_DISABLE_CPU_FEATURES

  bool is_available() const { return is_present && !is_disabled; }
};

// Every feature that a target or a kernel asks for. This and the functions below throw
// std::invalid_argument if the environment variable names one that is not among them.
const std::vector<CpuFeature>& cpu_features();

// True if every word of `needed` (separated by spaces) is available.
bool cpu_has(std::string_view needed);

bool cpu_is_intel();

// The words of `needed` that are not available, for a message: each says if it is only disabled.
std::string missing_features(std::string_view needed);

}  // namespace regard
