// The derivative of an attention call along a direction.
#pragma once

#include "attention_call.hpp"

namespace regard {

// Output and tangent_output, and lse and tangent_lse after them where the call's options ask for lse. Tangents are
// arrays, or None for zero. `call` has been prepared; returns NotImplemented where the kernels cannot read a tangent.
py::object tangents_of(AttentionCall& call, py::handle tangent_query, py::handle tangent_key,
                       py::handle tangent_value);

}  // namespace regard
