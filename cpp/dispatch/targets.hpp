// Which target runs: the best one that the CPU has, unless REGARD_TARGET or a test says otherwise.
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

// The target that the next call uses. Throws std::invalid_argument if REGARD_TARGET names none that
// runs here.
const Target& active_target();

// Why it is the active one: "best of this CPU", "REGARD_TARGET" or "set_target".
std::string active_target_reason();

// Forces a target by name; an empty name returns to the choice at import. Throws
// std::invalid_argument for a name that is unknown or does not run here.
void set_target(const std::string& name);

// For counting.hpp: forces one that is not in the list.
void exchange_target(const Target* target);

const Kernels& kernels_for(const Target& target, Scalar scalar);

}  // namespace regard
