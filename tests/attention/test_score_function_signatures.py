"""Test that the signatures of C score functions are checked."""

import ctypes
from ctypes import POINTER, c_double, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p

import numpy as np
import pytest

from messages import says
from regard import ScoreFunction
from score_functions import CTYPES, PARAMETERS, with_argtypes

INTEGERS = [name for name, each in zip(PARAMETERS, CTYPES, strict=True) if each is c_int64]
# Types that an argument must not have.
WRONG = [
    ("scores", c_float),
    ("scores", POINTER(c_int32)),
    ("scores", POINTER(POINTER(c_float))),
    ("scores", POINTER(ctypes.c_longdouble)),
    *((name, c_int32) for name in INTEGERS),
    *((name, c_uint64) for name in INTEGERS),
    *((name, c_double) for name in INTEGERS),
    *((name, c_void_p) for name in INTEGERS),
    ("query_positions", c_int64),
    ("query_positions", POINTER(c_int32)),
    ("query_positions", POINTER(c_uint64)),
    ("query_positions", POINTER(c_double)),
    ("user_data", c_int64),
    ("user_data", c_double),
    ("user_data", ctypes.py_object),
]


@pytest.mark.parametrize(("name", "of_ctypes"), WRONG)
def test_every_argument_is_checked(name, of_ctypes):
    number = PARAMETERS.index(name)
    function = ctypes.CFUNCTYPE(None, *CTYPES[:number], of_ctypes, *CTYPES[number + 1 :])(1)
    needed = {"scores": "float*", "query_positions": "int64_t*", "user_data": "void*"}
    words = (
        *(needed.get(name, "int64_t"), name, f"argument {number + 1}"),
        f"got {of_ctypes.__name__};",
        "void (float* scores, int64_t queries, int64_t keys, int64_t stride, const int64_t* "
        "query_positions, int64_t first_key, int64_t head, int64_t entry, void* user_data)",
    )
    for dtype in (None, "float32"):
        with pytest.raises(TypeError, match=says("function", *words)):
            ScoreFunction(function, dtype=dtype)
    with pytest.raises(TypeError, match=says("derivative", *words)):
        ScoreFunction(1, function, dtype="float32")


@pytest.mark.parametrize("count", [0, 1, 8, 10])
def test_the_number_of_arguments_is_checked(count):
    types = [*CTYPES, c_void_p][:count]
    with pytest.raises(TypeError, match=says("function", "9 arguments", str(count), "void")):
        ScoreFunction(ctypes.CFUNCTYPE(None, *types)(1))


@pytest.mark.parametrize("result", [c_int, c_float, c_void_p, ctypes.py_object])
def test_functions_return_nothing(result):
    function = ctypes.CFUNCTYPE(result, *CTYPES)(1)
    with pytest.raises(TypeError, match=says("function", "return", "void", result.__name__)):
        ScoreFunction(function)


def test_results_in_signatures_are_checked(library):
    with pytest.raises(TypeError, match=says("return", "c_double")):
        ScoreFunction(with_argtypes(library, "float32", c_double))


def test_functions_that_need_the_gil_are_refused():
    function = ctypes.PYFUNCTYPE(None, *CTYPES)(1)
    for thing in (function, ctypes.pythonapi.Py_IncRef):
        with pytest.raises(TypeError, match=says("function", "GIL", "CFUNCTYPE", "CDLL")):
            ScoreFunction(thing, dtype="float32")


def test_pointers_without_types_are_accepted():
    """Someone in a hurry may write argtypes in this way."""
    types = [each if each is c_int64 else c_void_p for each in CTYPES]
    function = ctypes.CFUNCTYPE(None, *types)(1)
    assert ScoreFunction(function, dtype="float64").dtype == np.float64
    with pytest.raises(TypeError, match=says("dtype", "void*", "scores")):
        ScoreFunction(function)
    types = [np.ctypeslib.ndpointer(np.float64), *CTYPES[1:4], np.ctypeslib.ndpointer(np.int64)]
    assert ScoreFunction(ctypes.CFUNCTYPE(None, *types, *CTYPES[5:])(1)).dtype == np.float64
