"""Test handles to C score functions, made from the functions of every library."""

import copy
import ctypes
import importlib.util
import pickle
import sys
import sysconfig
from ctypes import POINTER, c_double, c_float, c_int, c_void_p
from functools import partial

import numpy as np
import pytest

from messages import says
from regard import ScoreFunction
from score_functions import (
    CTYPES,
    address_in,
    assert_computes,
    build,
    c_signature,
    capsule_of,
    cffi,
    cffi_of_library,
    cffi_pointer,
    has_cffi,
    in_numba,
    in_python,
    loaded,
    low_level_callable,
    real,
    run,
    with_argtypes,
)

CYTHON_SOURCE = """
from libc.stdint cimport int64_t
cimport numpy as cnp

cdef api void function_float32(
    float* scores, int64_t queries, int64_t keys, int64_t stride, const int64_t* query_positions,
    int64_t first_key, int64_t head, int64_t entry, void* user_data
) noexcept nogil:
    cdef int64_t q, k
    for q in range(queries):
        for k in range(keys):
            scores[k * stride + q] = (
                2 * scores[k * stride + q] + query_positions[q] - (first_key + k)
                + 10 * head + 100 * entry + (<float*> user_data)[0]
            )

cdef api void function_float64(
    cnp.float64_t* scores, cnp.int64_t queries, cnp.int64_t keys, cnp.npy_intp stride,
    cnp.int64_t* query_positions, long long first_key, Py_ssize_t head, cnp.intp_t entry,
    void* user_data
) noexcept nogil:
    cdef int64_t q, k
    for q in range(queries):
        for k in range(keys):
            scores[k * stride + q] = (
                2 * scores[k * stride + q] + query_positions[q] - (first_key + k)
                + 10 * head + 100 * entry + (<double*> user_data)[0]
            )
"""

# Every kind of function, made from the path of a library and a dtype, and whether its types are
# known.
KINDS = {
    "address": (address_in, False),
    "np.uint64": (lambda *given: np.uint64(address_in(*given)), False),
    "c_void_p": (lambda *given: c_void_p(address_in(*given)), False),
    "CDLL": (lambda library, dtype: loaded(library)[f"function_{dtype}"], False),
    "CDLL with argtypes": (with_argtypes, True),
    "CDLL with a result not set": (partial(with_argtypes, restype=c_int), True),
    "CFUNCTYPE": (lambda *given: ScoreFunction.c_type(given[1])(address_in(*given)), True),
    "cffi": (cffi_pointer, True),
    "cffi library": (cffi_of_library, True),
    "cffi void *": (lambda *given: cffi().cast("void *", address_in(*given)), False),
    "PyCapsule": (capsule_of, True),
    "LowLevelCallable of ctypes": (
        lambda *given: low_level_callable()(with_argtypes(*given)),
        True,
    ),
    "LowLevelCallable of cffi": (lambda *given: low_level_callable()(cffi_pointer(*given)), True),
    "LowLevelCallable of a PyCapsule": (
        lambda *given: low_level_callable()(capsule_of(*given)),
        True,
    ),
    "LowLevelCallable with a signature": (
        lambda *given: low_level_callable()(
            ctypes.CFUNCTYPE(None)(address_in(*given)),
            signature=f"void ({c_signature(real(given[1]))})",
        ),
        True,
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_functions_of_every_library(kind, dtype, library):
    make, is_typed = KINDS[kind]
    function = make(library, dtype)
    derivative = address_in(library, dtype, "derivative")
    assert_computes(ScoreFunction(function, dtype=dtype), dtype)
    assert_computes(ScoreFunction(function, derivative, dtype=np.dtype(dtype)), dtype)
    if is_typed:
        assert_computes(ScoreFunction(function), dtype)
        other = "float64" if dtype == "float32" else "float32"
        wanted = "double*" if dtype == "float32" else "float*"
        with pytest.raises(TypeError, match=says("function", wanted, "scores", "argument 1")):
            ScoreFunction(function, dtype=other)
        # Functions and derivatives are read in the same way.
        main = address_in(library, other)
        with pytest.raises(TypeError, match=says("derivative", wanted, "scores")):
            ScoreFunction(main, function, dtype=other)
        assert ScoreFunction(address_in(library, dtype), function, dtype=dtype).dtype == dtype
    else:
        with pytest.raises(
            TypeError, match=says("dtype", "float32", "float64", "function", "None")
        ):
            ScoreFunction(function)


def test_functions_of_numba():
    function = in_numba("float32")
    addend = np.array([0.5], np.float32)
    assert_computes(ScoreFunction(function, user_data=addend), "float32", 0.5)
    assert_computes(ScoreFunction(function.ctypes, None, addend), "float32", 0.5)
    if has_cffi:
        assert_computes(ScoreFunction(function.cffi, None, addend, dtype="f4"), "float32", 0.5)
    low = low_level_callable()(function.ctypes, addend.ctypes.data_as(c_void_p))
    assert_computes(ScoreFunction(low), "float32", 0.5)
    with pytest.raises(TypeError, match=says("derivative", "double*", "float32*")):
        ScoreFunction(1, function, dtype="float64")


def test_dispatchers_of_numba_are_refused():
    numba = pytest.importorskip("numba", reason="Numba is not installed")
    for decorate in (numba.njit, numba.vectorize):
        kind = type(decorate(in_python)).__name__
        words = ("numba.cfunc", 'regard.ScoreFunction.numba_signature("float64")', kind)
        with pytest.raises(TypeError, match=says("function", *words)):
            ScoreFunction(decorate(in_python), dtype="float64")
        with pytest.raises(TypeError, match=says("derivative", "numba.cfunc")):
            ScoreFunction(1, decorate(in_python), dtype="float64")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_of_python_by_ctypes(dtype):
    function = ScoreFunction.c_type(dtype)(in_python)
    assert_computes(ScoreFunction(function), dtype)
    assert_computes(ScoreFunction(function, None, c_float(3)), dtype, 3)


def test_functions_of_python_by_cffi():
    @cffi().callback(f"void({c_signature()})")
    def function(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
        in_python(scores, queries, keys, stride, positions, first_key, head, entry, None)

    assert_computes(ScoreFunction(function), "float32")


@pytest.mark.parametrize("function", [in_python, abs, print, np.exp, dict, partial(in_python)])
def test_functions_of_python_are_refused(function):
    kind = type(function).__name__
    advice = ('ScoreFunction.numba_signature("float64")', 'ScoreFunction.c_type("float64")')
    words = (kind, "GIL", "numba.cfunc", *(f"regard.{each}" for each in advice))
    with pytest.raises(TypeError, match=says("function", *words)):
        ScoreFunction(function, dtype="float64")
    with pytest.raises(TypeError, match=says("derivative", kind, "GIL", "numba.cfunc")):
        ScoreFunction(1, function, dtype="float32")


@pytest.mark.parametrize("thing", [None, True, 1.5, "0x1000", b"f", [1], (1, 2), np.ones(2)])
def test_other_objects_are_refused(thing):
    with pytest.raises(TypeError, match=says("function", "C function", "Numba", "address")):
        ScoreFunction(thing, dtype="float32")
    if thing is not None:
        with pytest.raises(TypeError, match=says("derivative", "C function", "Numba", "address")):
            ScoreFunction(1, thing, dtype="float32")


@pytest.mark.parametrize("name", ["function", "derivative", "user_data"])
@pytest.mark.parametrize("address", [0, -1, 2**64, -(2**70), np.int32(0), np.int64(-5)])
def test_addresses_out_of_range_are_refused(name, address):
    given = {"function": 1} | {name: address}
    with pytest.raises(ValueError, match=says(name, "address", str(address))):
        ScoreFunction(**given, dtype="float32")


def test_null_pointers_are_refused():
    nulls = [c_void_p(), ScoreFunction.c_type()()]
    if has_cffi:
        nulls += [cffi().NULL, cffi().cast(f"void(*)({c_signature()})", 0)]
    for null in nulls:
        with pytest.raises(ValueError, match=says("function", "NULL")):
            ScoreFunction(null, dtype="float32")
        with pytest.raises(ValueError, match=says("derivative", "NULL")):
            ScoreFunction(1, null, dtype="float32")
        with pytest.raises(ValueError, match=says("user_data", "NULL", "None")):
            ScoreFunction(1, None, null, dtype="float32")
    with pytest.raises(ValueError, match=says("user_data", "NULL", "None")):
        ScoreFunction(1, None, POINTER(c_float)(), dtype="float32")


@pytest.mark.parametrize("dtype", ["float16", "int32", np.complex64, ">f4", "text", object, 3.5])
def test_other_types_are_refused(dtype):
    words = ("dtype", "float32", "float64")
    for refuse in (ScoreFunction.c_type, ScoreFunction.numba_signature):
        with pytest.raises(TypeError, match=says(*words)):
            refuse(dtype)
    with pytest.raises(TypeError, match=says(*words)):
        ScoreFunction(1, dtype=dtype)


def test_functions_of_cython(tmp_path):
    pytest.importorskip("Cython", reason="Cython is not installed")
    source = tmp_path / "score_functions.pyx"
    source.write_text(CYTHON_SOURCE, encoding="utf-8")
    run(sys.executable, "-m", "cython", "-3", source)
    folders = [f"-I{sysconfig.get_path('include')}", f"-I{np.get_include()}"]
    built = build(source.with_suffix(".c"), *folders)
    spec = importlib.util.spec_from_file_location("score_functions", built)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    functions = module.__pyx_capi__
    for dtype in ("float32", "float64"):
        function, addend = functions[f"function_{dtype}"], np.array(4, dtype)
        assert_computes(ScoreFunction(function, user_data=addend), dtype, 4)
        low = low_level_callable()(function, addend.ctypes.data_as(c_void_p))
        assert_computes(ScoreFunction(low), dtype, 4)


def test_a_score_function_does_not_change():
    function = ScoreFunction(1, 2, 3, dtype="float32")
    for name in ("dtype", "address", "derivative_address", "user_data_address", "other"):
        with pytest.raises(AttributeError):
            setattr(function, name, 5)
        with pytest.raises(AttributeError):
            delattr(function, name)
    assert (function.address, function.derivative_address) == (1, 2)
    assert function.user_data_address == 3


def test_equality_is_identity():
    one, other = (ScoreFunction(1, dtype="float32") for _ in range(2))
    assert one == one
    assert one != other
    assert len({one, other, one}) == 2
    assert copy.copy(one) is one
    assert copy.deepcopy([one])[0] is one


def test_score_functions_are_not_pickled():
    function = ScoreFunction(1, dtype="float32")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=says("ScoreFunction", "addresses", "another process")):
            pickle.dumps(function, protocol)


def test_representation():
    assert repr(ScoreFunction(4096, dtype="f4")) == "ScoreFunction(0x1000, dtype='float32')"
    shown = repr(ScoreFunction(4096, 8192, 256, dtype="f8"))
    assert shown == "ScoreFunction(0x1000, derivative=0x2000, user_data=0x100, dtype='float64')"
    again = eval(shown)
    assert (again.address, again.derivative_address, again.user_data_address) == (4096, 8192, 256)


def test_the_types_of_other_libraries():
    assert ScoreFunction.c_type() is ScoreFunction.c_type(np.float32)
    assert list(ScoreFunction.c_type("float32")._argtypes_) == CTYPES
    assert ScoreFunction.c_type("float64")._argtypes_[0] is POINTER(c_double)
    assert ScoreFunction.numba_signature() == (
        "void(CPointer(float32), int64, int64, int64, CPointer(int64), int64, int64, int64, "
        "voidptr)"
    )
    assert ScoreFunction.numba_signature(np.float64) == (
        ScoreFunction.numba_signature().replace("float32", "float64")
    )


def test_the_class_is_public():
    assert ScoreFunction.__module__ == "regard"


def test_no_other_library_is_imported(output_of):
    script = """
        import sys
        import regard
        function = regard.ScoreFunction.c_type("float32")(lambda *arguments: None)
        regard.ScoreFunction(function, user_data=regard.ScoreFunction.c_type("float64")(1))
        regard.ScoreFunction.numba_signature("float64")
        print([name for name in ("numba", "cffi", "_cffi_backend", "scipy", "Cython")
               if name in sys.modules])
        """
    assert output_of(script) == "[]"
