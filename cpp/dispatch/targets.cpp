#include "targets.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "cpu_features.hpp"
#include "on_architecture.hpp"

namespace regard {

#define REGARD_TARGET(name, architecture, features) \
  REGARD_ON_##architecture(namespace name { extern const Target target; })
#include "targets.inc"
#undef REGARD_TARGET

namespace {

struct Choice {
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
  bool is_compiled = false;
  for (const TargetRow& row : targets()) {
    if (name != row.target->name) continue;
    if (row.is_runnable) return *row.target;
    is_compiled = true;
  }
  throw std::invalid_argument(who + " must be one of the targets that run on this CPU (" +
                              runnable_names() + "), got '" + name + "'" +
                              (is_compiled ? ", which needs a newer CPU" : ""));
}

Choice choose_at_start() {
  const char* wanted = std::getenv("REGARD_TARGET");
  if (wanted && *wanted) return {&runnable(wanted, "REGARD_TARGET"), "REGARD_TARGET"};
  for (const TargetRow& row : targets())
    if (row.is_runnable) return {row.target, "best of this CPU"};
  throw std::logic_error("targets.inc lists no target that always runs");
}

const Choice& choice_at_start() {
  static const Choice choice = choose_at_start();
  return choice;
}

std::atomic<const Target*> forced{nullptr};

}  // namespace

const std::vector<TargetRow>& targets() {
#define REGARD_TARGET(name, architecture, features) \
  REGARD_ON_##architecture({&name::target, features, cpu_has(features)},)
  // Never destroyed: threads may compute while the process exits.
  static const auto& rows = *new std::vector<TargetRow>{
#include "targets.inc"
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

const Kernels& kernels_for(const Target& target, Scalar scalar) {
  return scalar == Scalar::float32 ? target.float32 : target.float64;
}

}  // namespace regard
