// Selects the target: the best one that the CPU supports, unless REGARD_TARGET or a test selects
// another.
#pragma once

#include <string>
#include <vector>

#include "../kernels/kernel_table.hpp"

namespace regard {

struct TargetRow {
  const Target* target;
  const char* features;
  bool is_runnable;
};

// All compiled targets, best first.
const std::vector<TargetRow>& targets();

// The target that the next call uses. Throws std::invalid_argument if REGARD_TARGET does not name a
// target that runs here.
const Target& active_target();

// Why it is the active one: "best of this CPU", "best of the compiled targets", "REGARD_TARGET" or "set_target".
std::string active_target_reason();

// Forces a target by name; an empty name restores the choice at import. Throws
// std::invalid_argument if the target is unknown or does not run here.
void set_target(const std::string& name);

// The best target that this CPU could run, if it was not compiled and is better than the compiled
// ones that run here; empty otherwise.
std::string better_target();

// For tests: forces a target that is not in the list.
void exchange_target(const Target* target);

const Kernels& kernels_for(const Target& target, Scalar scalar);

}  // namespace regard
