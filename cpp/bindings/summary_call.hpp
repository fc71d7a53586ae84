// Statistics and maps of the weights of an attention call.
#pragma once

#include "attention_call.hpp"

namespace regard {

struct SummaryArguments {
  py::handle lse;
  py::handle wanted;          // a bool for each result, in the order of SummaryProblem's
  py::handle first_keys;
  py::handle local_reach;
  py::handle top_count;
  py::handle induction_keys;  // an array of int64 that broadcasts to the shape of lse, or None
  py::handle progress;        // called with the number of finished rows and the number of all rows, or None
};

// Returns a tuple of arrays, with None for results that are not requested, followed by the keys of
// the largest weights. `call` must be prepared, with the keys as values. Returns NotImplemented if
// the kernels cannot read lse.
py::object summary_of(AttentionCall& call, const SummaryArguments& arguments);

struct MapArguments {
  py::handle lse;
  py::handle extent;   // height and width of the picture, then the begin and end of its rows and of its keys
  py::handle pooling;  // a value of the enumeration
  py::handle progress;
};

// Returns a picture of an attention call's weights, an array (..., heads, height, width). `call` is
// as above.
py::object map_of(AttentionCall& call, const MapArguments& arguments);

}  // namespace regard
