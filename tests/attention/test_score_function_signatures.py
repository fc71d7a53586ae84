"""Test that the signatures of C score functions are checked, as every library writes them."""

import ctypes
from ctypes import POINTER, c_double, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p

import numpy as np
import pytest

from messages import says
from regard import ScoreFunction
from score_functions import (
    CTYPES,
    PARAMETERS,
    c_signature,
    capsule,
    cffi,
    has_cffi,
    with_argtypes,
)

INTEGERS = [name for name, each in zip(PARAMETERS, CTYPES, strict=True) if each is c_int64]
# Types that an argument must not have, in ctypes and in C.
WRONG = [
    ("scores", c_float, "float"),
    ("scores", POINTER(c_int32), "int32_t *"),
    ("scores", POINTER(POINTER(c_float)), "float * *"),
    ("scores", POINTER(ctypes.c_longdouble), "long double *"),
    *((name, c_int32, "int32_t") for name in INTEGERS),
    *((name, c_uint64, "unsigned long long") for name in INTEGERS),
    *((name, c_double, "double") for name in INTEGERS),
    *((name, c_void_p, "void *") for name in INTEGERS),
    ("query_positions", c_int64, "int64_t"),
    ("query_positions", POINTER(c_int32), "int32_t *"),
    ("query_positions", POINTER(c_uint64), "uint64_t *"),
    ("query_positions", POINTER(c_double), "double *"),
    ("user_data", c_int64, "int64_t"),
    ("user_data", c_double, "double"),
    ("user_data", ctypes.py_object, "PyObject"),
]


def test_signatures_of_numba_are_checked():
    numba = pytest.importorskip("numba", reason="Numba is not installed")
    types = ScoreFunction.numba_signature("float64")
    cfunc = numba.cfunc(types.replace("int64, int64, voidptr", "int64, int32, CPointer(int8)"))

    @cfunc
    def narrow(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
        pass

    with pytest.raises(TypeError, match=says("entry", "argument 8", "int32", "int64_t", "double*")):
        ScoreFunction(narrow, dtype="float64")

    class Stand:
        """A stand-in that differs only in its types, since compiling is slow."""

        __module__ = "numba.core.ccallback"
        address = 1

        def __init__(self, signature):
            self._sig = numba.core.sigutils._parse_signature_string(signature)

    assert ScoreFunction(Stand(types)).dtype == np.float64
    assert ScoreFunction(Stand(types.replace("voidptr", "CPointer(float64)"))).address == 1
    with pytest.raises(TypeError, match=says("function", "return", "void", "float64")):
        ScoreFunction(Stand(types.replace("void(", "float64(")))
    with pytest.raises(TypeError, match=says("9 arguments", "8")):
        ScoreFunction(Stand(types.replace(", voidptr", "")))


@pytest.mark.parametrize(("name", "of_ctypes", "text"), WRONG)
def test_every_argument_is_checked(name, of_ctypes, text):
    number = PARAMETERS.index(name)
    signature = c_signature(**{name: text})
    wrong = [
        (ctypes.CFUNCTYPE(None, *CTYPES[:number], of_ctypes, *CTYPES[number + 1 :])(1), of_ctypes),
        (capsule(1, f"void ({signature})"), text),
    ]
    if has_cffi and text != "PyObject":
        wrong.append((cffi().cast(f"void(*)({signature})", 1), text))
    needed = {"scores": "float*", "query_positions": "int64_t*", "user_data": "void*"}
    for function, came in wrong:
        words = (
            *(needed.get(name, "int64_t"), name, f"argument {number + 1}"),
            f"got {getattr(came, '__name__', came)};",
            "void (float* scores, int64_t queries, int64_t keys, int64_t stride, const int64_t* "
            "query_positions, int64_t first_key, int64_t head, int64_t entry, void* user_data)",
        )
        for dtype in (None, "float32"):
            with pytest.raises(TypeError, match=says("function", *words)):
                ScoreFunction(function, dtype=dtype)
        with pytest.raises(TypeError, match=says("derivative", *words)):
            ScoreFunction(1, function, dtype="float32")


def test_constant_scores_are_refused():
    with pytest.raises(TypeError, match=says("float*", "scores", "argument 1", "const float *")):
        ScoreFunction(capsule(1, f"void ({c_signature('const float')})"))


@pytest.mark.parametrize("count", [0, 1, 8, 10])
def test_the_number_of_arguments_is_checked(count):
    types = [*CTYPES, c_void_p][:count]
    text = f"void ({', '.join([*c_signature().split(', '), 'void *'][:count])})"
    for function in (ctypes.CFUNCTYPE(None, *types)(1), capsule(1, text)):
        with pytest.raises(TypeError, match=says("function", "9 arguments", str(count), "void")):
            ScoreFunction(function)


@pytest.mark.parametrize("result", [c_int, c_float, c_void_p, ctypes.py_object])
def test_functions_return_nothing(result):
    function = ctypes.CFUNCTYPE(result, *CTYPES)(1)
    with pytest.raises(TypeError, match=says("function", "return", "void", result.__name__)):
        ScoreFunction(function)


def test_results_in_signatures_are_checked(library):
    with pytest.raises(TypeError, match=says("return", "double")):
        ScoreFunction(capsule(1, f"double ({c_signature()})"))
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


SPELLINGS = {
    "float32": [
        "void (float *, int64_t, int64_t, int64_t, int64_t const *, int64_t, int64_t, int64_t, "
        "void *)",
        "void(float*,int64_t,int64_t,int64_t,const int64_t*,int64_t,int64_t,int64_t,void*)",
        " void ( npy_float32 * , npy_int64, PY_LONG_LONG, signed long long int, long long const *, "
        "npy_longlong, int64_t const, const int64_t, float const * ) ",
        "void (__pyx_t_5numpy_float32_t *, __pyx_t_5numpy_int64_t, __pyx_t_5numpy_int64_t, "
        "__pyx_t_5numpy_int64_t, __pyx_t_5numpy_int64_t const *, __pyx_t_5numpy_int64_t, "
        "__pyx_t_5numpy_int64_t, __pyx_t_5numpy_int64_t, void *)",
    ],
    "float64": [
        "void (double *, longlong, longlong, longlong, longlong *, longlong, longlong, longlong, "
        "void *)",
        "void (npy_double *, int64_t, Py_ssize_t, npy_intp, intptr_t *, ssize_t, ptrdiff_t, "
        "__pyx_t_5numpy_intp_t, double *)",
        *["void (double *, long, long int, long, signed long *, long, long, npy_long, void *)"]
        * (ctypes.sizeof(ctypes.c_long) == 8),
    ],
}


@pytest.mark.parametrize("dtype", SPELLINGS)
@pytest.mark.parametrize("wrong", ["unsigned {}", "{}_ptr"])
def test_spellings_of_signatures(dtype, wrong):
    for text in SPELLINGS[dtype]:
        assert ScoreFunction(capsule(1, text)).dtype == dtype
        result, _, arguments = text.partition("(")
        first, second, *others = arguments.split(",")
        changed = ",".join([first, wrong.format(second.strip()), *others])
        with pytest.raises(TypeError, match=says("queries", "argument 2")):
            ScoreFunction(capsule(1, f"{result}({changed}"))


@pytest.mark.parametrize("name", [None, "", "numpy._ARRAY_API", "float32", "void ("])
def test_capsules_without_a_signature_are_refused(name):
    words = ("function", "PyCapsule", "__pyx_capi__", "signature must be void")
    with pytest.raises(TypeError, match=says(*words, "None" if name is None else f"'{name}'")):
        ScoreFunction(capsule(1, name), dtype="float32")
