// Attention with queries and keys in int8.
#pragma once

#include "plan.hpp"

namespace regard {

// Whether this CPU has the instruction that makes int8 faster than float32. Without it,
// Precision::int8 has no effect: the call is computed in float32.
bool is_faster_in_int8(const Kernels& kernels);

// For tests: with true, is_faster_in_int8 returns what it would on a CPU that has only its target's
// features.
void forbid_int8(bool forbid);

// Runs a plan of AttentionMethod::int8.
void attention_in_int8(const AttentionPlan& plan, const StopSignal& signal);

}  // namespace regard
