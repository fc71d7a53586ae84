// Attention with queries and keys in int8.
#pragma once

#include "plan.hpp"

namespace regard {

// The kernel for this CPU.
const Int8Attention& int8_attention_of(const Kernels& kernels);

// For the tests: with true, int8_attention_of chooses as if the CPU had its target's features alone.
void forbid_int8_feature(bool forbid);

// Runs a plan of AttentionMethod::int8.
void attention_in_int8(const AttentionPlan& plan, const StopSignal& signal);

}  // namespace regard
