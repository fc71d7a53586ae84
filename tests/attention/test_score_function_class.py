"""Test handles to C score functions, made from ctypes functions and addresses."""

import copy
import pickle
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
    cffi,
    cffi_pointer,
    in_numba,
    in_python,
    loaded,
    with_argtypes,
)

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
    "cffi": (
        lambda *given: int(cffi().cast("uintptr_t", cffi_pointer(*given))),
        False,
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
    assert_computes(ScoreFunction(function.ctypes, None, addend), "float32", 0.5)
    assert_computes(ScoreFunction(function.address, None, addend, dtype="f4"), "float32", 0.5)
    with pytest.raises(TypeError, match=says("derivative", "double*", "argument 1")):
        ScoreFunction(1, function.ctypes, dtype="float64")
    with pytest.raises(TypeError, match=says("function", "Numba", "pass its .ctypes")):
        ScoreFunction(function)


def test_functions_of_cffi_are_passed_as_addresses(library):
    function = cffi_pointer(library, "float32")
    with pytest.raises(TypeError, match=says("function", 'int(ffi.cast("uintptr_t"', "dtype=")):
        ScoreFunction(function)


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
