// What the module offers to Python; arguments arrive as objects and are checked one by one.
#pragma once

#include <pybind11/pybind11.h>

namespace regard {

namespace py = pybind11;

py::object attention(py::handle query, py::handle key, py::handle value, py::handle mask,
                     py::handle is_causal, py::handle query_offset, py::handle window,
                     py::handle key_lengths, py::handle scale, py::handle softcap,
                     py::handle alibi_slopes, py::handle sinks, py::handle precision,
                     py::handle return_weights, py::handle return_lse, py::handle out,
                     py::handle threads);
py::object attention_ragged(py::handle query, py::handle key, py::handle value,
                            py::handle query_starts, py::handle key_starts, py::handle mask,
                            py::handle is_causal, py::handle query_offset, py::handle window,
                            py::handle key_lengths, py::handle scale, py::handle softcap,
                            py::handle alibi_slopes, py::handle sinks, py::handle precision,
                            py::handle return_weights, py::handle return_lse, py::handle out,
                            py::handle threads);
py::object attention_cached(py::handle query, py::handle key, py::handle value,
                            py::handle key_scales, py::handle value_scales,
                            py::handle pages, py::handle kv_len, py::handle mask,
                            py::handle is_causal, py::handle query_offset, py::handle window,
                            py::handle key_lengths, py::handle scale, py::handle softcap,
                            py::handle alibi_slopes, py::handle sinks, py::handle return_weights,
                            py::handle return_lse, py::handle out, py::handle threads);
py::dict attention_cached_plan(py::handle query, py::handle key, py::handle value,
                               py::handle key_scales, py::handle value_scales,
                               py::handle pages, py::handle kv_len, py::handle mask,
                               py::handle is_causal, py::handle query_offset, py::handle window,
                               py::handle key_lengths, py::handle scale, py::handle softcap,
                               py::handle alibi_slopes, py::handle sinks, py::handle threads);
py::dict attention_plan(py::handle query, py::handle key, py::handle value, py::handle mask,
                        py::handle is_causal, py::handle query_offset, py::handle window,
                        py::handle key_lengths, py::handle scale, py::handle softcap,
                        py::handle alibi_slopes, py::handle sinks, py::handle precision,
                        py::handle threads);
py::object matmul(py::handle a, py::handle b, py::handle out, py::handle threads);
py::object scale(py::handle scores, py::handle factor, py::handle out, py::handle threads);
py::object apply_mask(py::handle scores, py::handle mask, py::handle out, py::handle threads);
py::object softmax(py::handle x, py::handle axis, py::handle out, py::handle threads);

// Lists of arrays, one for each part. True if the kernels can read them all as they are.
bool are_states(const py::list& outputs, const py::list& lses);
py::tuple merge_attention_states(const py::list& outputs, const py::list& lses);

// Integers, scales, and whether all of them are finite.
py::tuple quantise_rows(py::handle rows, bool rotates);

// target[...] = source, of other memory. False where that is left to NumPy: other types, other strides, or a
// finite number that became infinite, of which NumPy warns.
bool convert_rows(py::handle source, py::handle target);

// What tests and benchmarks may change of a running module, and nothing else does.
void add_test_hooks(py::module_& module);

}  // namespace regard
