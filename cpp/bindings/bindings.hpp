// What the module offers to Python; arguments arrive as objects and are checked one by one.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "page_rows.hpp"

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
py::object attention_cached(py::handle query, const PageRows& rows, py::handle pages,
                            py::handle evicted_pages, py::handle sink_tokens, py::handle kv_len,
                            py::handle mask, py::handle is_causal, py::handle query_offset,
                            py::handle window, py::handle key_lengths, py::handle scale,
                            py::handle softcap, py::handle alibi_slopes, py::handle sinks,
                            py::handle return_weights, py::handle return_lse, py::handle out,
                            py::handle threads);
py::dict attention_cached_plan(py::handle query, const PageRows& rows, py::handle pages,
                               py::handle evicted_pages, py::handle sink_tokens, py::handle kv_len,
                               py::handle mask, py::handle is_causal, py::handle query_offset,
                               py::handle window, py::handle key_lengths, py::handle scale,
                               py::handle softcap, py::handle alibi_slopes, py::handle sinks,
                               py::handle threads);
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

// Memory of `bytes` bytes that begins with the first `file_bytes` of a file: what is written there stays in
// memory and never reaches the file.
py::array map_copy(int descriptor, std::int64_t file_bytes, std::int64_t bytes);

}  // namespace regard
