// The derivative of an attention call along a direction.
#pragma once

#include "attention_call.hpp"

namespace regard {

// Returns output and tangent_output, followed by lse and tangent_lse if the call's options request
// lse. Tangents are arrays, or None for zero. `call` must be prepared. Returns NotImplemented if
// the kernels cannot read a tangent.
py::object tangents_of(AttentionCall& call, py::handle tangent_query, py::handle tangent_key,
                       py::handle tangent_value);

}  // namespace regard
