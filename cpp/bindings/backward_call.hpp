// The gradients of an attention call, for any array layout.
#pragma once

#include "attention_call.hpp"

namespace regard {

// The arguments of the gradients in addition to the call's own arguments. `wanted` is a tuple of
// six flags, for query, key, value, the float mask, the ALiBi slopes and the sinks; `out` is None,
// or a tuple of three items that are arrays or None.
struct BackwardArguments {
  py::handle grad_output;
  py::handle output;
  py::handle lse;
  py::handle grad_lse;
  py::handle wanted;
  py::handle out;
};

// Returns the gradients of query, key and value; the gradient of the float mask, in the type in
// which it was summed; and for each row its term of the gradient of its slope, and D. Gradients
// that are not requested are None. `call` must be prepared. Returns NotImplemented if the kernels
// cannot read an array.
py::object gradients_of(AttentionCall& call, const BackwardArguments& arguments);

}  // namespace regard
