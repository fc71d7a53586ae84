// The gradients of an attention call, however its arrays are laid out.
#pragma once

#include "attention_call.hpp"

namespace regard {

// What the gradients need in addition to the call's own arguments. `wanted` is a tuple of six flags, for query, key,
// value, the float mask, the slopes of ALiBi and the sinks; `out` is None or a tuple of three arrays or None.
struct BackwardArguments {
  py::handle grad_output;
  py::handle output;
  py::handle lse;
  py::handle grad_lse;
  py::handle wanted;
  py::handle out;
};

// The gradients of query, key and value; that of the float mask, in the type in which it was summed; and for each row
// what it adds to the gradient of its slope, and D. None where not wanted. `call` has been prepared; returns NotImplemented
// where the kernels cannot read an array.
py::object gradients_of(AttentionCall& call, const BackwardArguments& arguments);

}  // namespace regard
