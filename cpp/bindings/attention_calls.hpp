// The attention functions of the module: what is computed (a function that finishes a prepared
// call) for each layout of the arrays.
#pragma once

#include "attention_call.hpp"
#include "bindings.hpp"
#include "starts.hpp"

namespace regard {

// Check and set everything but the results. Return false if the kernels cannot read an argument.
bool prepare_dense(AttentionCall& call, py::handle query, py::handle key, py::handle value,
                   py::handle mask, py::handle keywords);
// The starts must outlive the call.
bool prepare_ragged(AttentionCall& call, py::handle query, py::handle key, py::handle value,
                    const Starts& query_starts, const Starts& key_starts, py::handle mask,
                    py::handle keywords);

// Raises the error of an invalid call, or returns the result of AttentionCall::checked. Reads no
// array.
inline py::object checked_of(AttentionCall& call) { return call.checked(); }
inline py::object output_of(AttentionCall& call) { return call.run(); }
inline py::object plan_of(AttentionCall& call) { return call.explain(); }

// Returns the gradients of query, key and value; the gradient of the float mask, in the type in
// which it was summed; and for each row its term of the gradient of its slope, and D. `wanted` is a
// tuple of flags, for query, key, value, the float mask, the ALiBi slopes, the sinks and the table
// of distances; gradients that are not wanted are None. `out` is None, or a tuple of three items
// that are arrays or None.
py::object gradients_of(AttentionCall& call, py::handle grad_output, py::handle output,
                        py::handle lse, py::handle grad_lse, py::handle wanted, py::handle out);

// Returns output and tangent_output, followed by lse and tangent_lse if the call's options request
// lse. Tangents are arrays, or None for zero.
py::object tangents_of(AttentionCall& call, py::handle tangent_query, py::handle tangent_key,
                       py::handle tangent_value);

// Returns a tuple of arrays, with None for results that are not wanted, followed by the keys of the
// largest weights. `wanted` has a bool for each result; `induction_keys` is an array of int64 that
// broadcasts to the shape of lse, or None; `progress` is called with the number of finished rows
// and the number of all rows, or None. The values of the call are its keys, here and below.
py::object summary_of(AttentionCall& call, py::handle lse, py::handle wanted, py::handle first_keys,
                      py::handle local_reach, py::handle top_count, py::handle induction_keys,
                      py::handle progress);

// Returns a picture of the weights, an array (..., heads, height, width). `extent` has the height
// and width of the picture, then the begin and end of its rows and of its keys; `pooling` is a
// value of the enumeration.
py::object map_of(AttentionCall& call, py::handle lse, py::handle extent, py::handle pooling,
                  py::handle progress);

// Returns the selected keys, an array of int64 of shape (..., kv_heads, q_len, count). `weights` has
// one number per head and query. The values of the call are its keys.
py::object selected_keys_of(AttentionCall& call, py::handle weights, py::handle count);

extern const Layout kDense, kRagged;

template <auto kFinish>
struct Calls;

template <class... More, py::object (*kFinish)(AttentionCall&, More...)>
struct Calls<kFinish> {
  static py::object dense(py::handle query, py::handle key, py::handle value, py::handle mask,
                          py::handle keywords, More... more) {
    AttentionCall call(kDense);
    return prepare_dense(call, query, key, value, mask, keywords) ? kFinish(call, more...)
                                                                  : not_implemented();
  }

  static py::object ragged(py::handle query, py::handle key, py::handle value,
                           py::handle query_starts, py::handle key_starts, py::handle mask,
                           py::handle keywords, More... more) {
    const Starts of_queries = starts_of("query_starts", query_starts);
    const Starts of_keys = starts_of("key_starts", key_starts);
    AttentionCall call(kRagged);
    return prepare_ragged(call, query, key, value, of_queries, of_keys, mask, keywords)
               ? kFinish(call, more...)
               : not_implemented();
  }

  // Of the weights, without values.
  static py::object dense_weights(py::handle query, py::handle key, py::handle mask,
                                  py::handle keywords, More... more) {
    return dense(query, key, key, mask, keywords, more...);
  }
  static py::object ragged_weights(py::handle query, py::handle key, py::handle query_starts,
                                   py::handle key_starts, py::handle mask, py::handle keywords,
                                   More... more) {
    return ragged(query, key, key, query_starts, key_starts, mask, keywords, more...);
  }
};

}  // namespace regard
