#include "targets.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "cpu_features.hpp"

namespace regard {

#define REGARD_TARGET(name, architecture, features) namespace name { extern const Target target; }
#include "compiled_targets.inc"
#undef REGARD_TARGET

namespace {

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
  std::string missing;
  for (const TargetRow& row : targets()) {
    if (name != row.target->name) continue;
    if (row.is_runnable) return *row.target;
    missing = missing_features(row.features);
  }
  throw std::invalid_argument(who + " must be one of the targets that run on this CPU (" +
                              runnable_names() + "), got '" + name + "'" +
                              (missing.empty() ? "" : ", which needs " + missing));
}

TargetChoice choose_at_start() {
  const char* wanted = std::getenv("REGARD_TARGET");
  if (wanted && *wanted) return {&runnable(wanted, "REGARD_TARGET"), "REGARD_TARGET"};
  for (const TargetRow& row : targets())
    if (row.is_runnable) return {row.target, "best of this CPU"};
  throw std::logic_error("targets.inc lists no target that always runs");
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

void exchange_target(const Target* target) { forced.store(target, std::memory_order_relaxed); }

const Kernels& kernels_for(const Target& target, Scalar scalar) {
  return scalar == Scalar::float32 ? target.float32 : target.float64;
}

}  // namespace regard
