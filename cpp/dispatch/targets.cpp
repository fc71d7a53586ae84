#include "targets.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "cpu_features.hpp"

namespace regard {

#define REGARD_TARGET(name, architecture, features) namespace name { extern const Target target; }
#include "compiled_targets.inc"
#undef REGARD_TARGET

namespace {

// Compiled or not.
struct ListedTarget {
  std::string_view name, architecture;
  const char* features;
};

constexpr ListedTarget kListed[] = {
#define REGARD_TARGET(name, architecture, features) {#name, #architecture, features},
#include "../kernels/targets/targets.inc"
#undef REGARD_TARGET
};

struct TargetChoice {
  const Target* target;
  const char* reason;
};

std::string runnable_names() {
  std::string names;
  for (const TargetRow& row : targets())
    if (row.is_runnable) names += (names.empty() ? "" : ", ") + std::string(row.target->name);
  return names;
}

const Target& runnable(const std::string& name, const std::string& who) {
  for (const TargetRow& row : targets())
    if (row.is_runnable && name == row.target->name) return *row.target;
  std::string why;
  for (const ListedTarget& listed : kListed) {
    if (name != listed.name || !cpu_runs(listed.architecture, "")) continue;
    const std::string missing = missing_features(listed.features);
    why = missing.empty() ? ", which was not compiled: build with -Ccmake.define.REGARD_TARGETS=all"
                          : ", which needs " + missing;
  }
  throw std::invalid_argument(who + " must be one of the targets that run on this CPU (" +
                              runnable_names() + "), got '" + name + "'" + why);
}

TargetChoice choose_at_start() {
  const char* wanted = std::getenv("REGARD_TARGET");
  if (wanted && *wanted) return {&runnable(wanted, "REGARD_TARGET"), "REGARD_TARGET"};
  const char* const reason = better_target().empty() ? "best of this CPU" : "best of the compiled targets";
  for (const TargetRow& row : targets())
    if (row.is_runnable) return {row.target, reason};
  throw std::runtime_error("no compiled target runs on this CPU: build with -Ccmake.define.REGARD_TARGETS=all");
}

const TargetChoice& choice_at_start() {
  static const TargetChoice choice = choose_at_start();
  return choice;
}

std::atomic<const Target*> forced{nullptr};

}  // namespace

const std::vector<TargetRow>& targets() {
#define REGARD_TARGET(name, architecture, features) \
  {&name::target, features, cpu_has(features)},
  // Never destroyed: threads may compute while the process exits.
  static const auto& rows = *new std::vector<TargetRow>{
#include "compiled_targets.inc"
  };
#undef REGARD_TARGET
  return rows;
}

const Target& active_target() {
  const Target* target = forced.load(std::memory_order_relaxed);
  return target ? *target : *choice_at_start().target;
}

std::string active_target_reason() {
  return forced.load(std::memory_order_relaxed) ? "set_target" : choice_at_start().reason;
}

void set_target(const std::string& name) {
  forced.store(name.empty() ? nullptr : &runnable(name, "target"), std::memory_order_relaxed);
}

std::string better_target() {
  std::string_view best;  // of the compiled ones
  for (const TargetRow& row : targets())
    if (row.is_runnable && best.empty()) best = row.target->name;
  for (const ListedTarget& listed : kListed) {
    if (listed.name == best) break;
    if (cpu_runs(listed.architecture, listed.features)) return std::string(listed.name);
  }
  return "";
}

void exchange_target(const Target* target) { forced.store(target, std::memory_order_relaxed); }

const Kernels& kernels_for(const Target& target, Scalar scalar) {
  return scalar == Scalar::float32 ? target.float32 : target.float64;
}

}  // namespace regard
