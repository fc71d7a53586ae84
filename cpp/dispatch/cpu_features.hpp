// Features that this CPU has, the operating system has enabled, and REGARD_DISABLE_CPU_FEATURES
// does not disable.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace regard {

struct CpuFeature {
  std::string_view name;
  bool is_present;   // the CPU has it, and the system saves its registers
  bool is_disabled;  // by REGARD_DISABLE_CPU_FEATURES

  bool is_available() const { return is_present && !is_disabled; }
};

// Every feature that a target or a kernel requires. This function and the functions below throw
// std::invalid_argument if the environment variable names any other feature.
const std::vector<CpuFeature>& cpu_features();

// True if every word of `needed` (separated by spaces) is available.
bool cpu_has(std::string_view needed);

// True if this is a CPU of that architecture ("any": of each), as targets.inc names it, and has the features.
bool cpu_runs(std::string_view architecture, std::string_view needed);

bool cpu_is_intel();

// The words of `needed` that are not available, for a message that marks those that are only
// disabled.
std::string missing_features(std::string_view needed);

}  // namespace regard
