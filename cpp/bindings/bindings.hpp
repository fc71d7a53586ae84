// The functions that the module provides to Python, with those of attention_calls.hpp. If the kernels cannot read an argument as it
// is, a function returns NotImplemented, and Python converts the argument or raises an error.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

namespace regard {

namespace py = pybind11;

inline py::object not_implemented() { return py::reinterpret_borrow<py::object>(Py_NotImplemented); }

// Attention to keys and values in pages: `pages` is a LayerPages. Queries are packed if `starts` is not
// None.
py::object attention_cached(py::handle query, py::handle starts, py::handle pages, py::handle mask,
                            py::handle keywords);
py::object attention_cached_plan(py::handle query, py::handle starts, py::handle pages, py::handle mask,
                                 py::handle keywords);

// Appends new rows to the pages of a layer of a cache (layer_pages.hpp). `counts` are the numbers of
// new tokens of each entry, or the starts of packed tokens, or None if all tokens are new. Returns
// False, and appends nothing, if the arrays must be converted first: if they cannot be stored as they
// are, or a finite number would become infinite.
py::object append_rows(py::handle pages, py::handle key, py::handle value, py::handle key_scales,
                       py::handle value_scales, py::handle counts, py::handle is_packed);
void add_page_tables(py::module_& module);

// linear_attention. `decay`, `beta`, `state`, `scale` and `starts` may be None; `out` is None, or a
// pair of arrays or None for output and state.
py::object linear_attention(py::handle query, py::handle key, py::handle value, py::handle decay, py::handle beta,
                            py::handle state, py::handle scale, py::handle starts, py::handle return_state,
                            py::handle out, py::handle threads);
// Its gradients with respect to query, key, value, decay, beta and state: pairs of a gradient, in the
// type of the arithmetic and not summed over broadcast axes, and its input; or None for None.
py::object linear_attention_backward(py::handle grad_output, py::handle query, py::handle key,
                                     py::handle value, py::handle decay, py::handle beta, py::handle state,
                                     py::handle scale, py::handle starts, py::handle grad_state,
                                     py::handle threads);

// The four stages. b may have type float16 or bfloat16; in matmul_int8, b is integers (depth,
// columns) times scales (groups of depth, columns).
py::object matmul(py::handle a, py::handle b, py::handle out, py::handle threads);
py::object matmul_int8(py::handle a, py::handle numbers, py::handle scales, py::handle out, py::handle threads);
py::object scale(py::handle scores, py::handle factor, py::handle out, py::handle threads);
py::object apply_mask(py::handle scores, py::handle mask, py::handle out, py::handle threads);
py::object softmax(py::handle x, py::handle axis, py::handle out, py::handle threads);

// Lists of arrays, one for each part.
py::object merge_attention_states(const py::list& outputs, const py::list& lses, py::handle threads);

// Converts rows to the form in which a cache stores them ("int8", "float8" or "q4_1"). Returns the
// numbers, the scales or None, and whether the form can represent all numbers.
py::tuple quantized_rows(py::handle rows, const std::string& form, bool rotates);

// Returns a tensor of another library as an array that shares its memory, or None if this is not
// possible here. `bfloat16` is NumPy's type for bfloat16 tensors, or None.
py::object array_of_tensor(py::handle tensor, py::handle bfloat16);

// Hooks by which only tests and benchmarks change a running module.
void add_test_hooks(py::module_& module);

}  // namespace regard
