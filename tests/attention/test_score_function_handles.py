"""Handles to C score functions: every kind of function and user data is called with the right
arguments, wrong signatures are refused, and memory stays alive."""

import copy
import ctypes
import gc
import pickle
import weakref
from ctypes import POINTER, c_double, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from functools import cache

import numpy as np
import pytest

from regard import ScoreFunction

QUERIES, KEYS, STRIDE, FIRST_KEY, HEAD, ENTRY = 3, 5, 7, 40, 2, 6
POSITIONS = np.array([50, 41, 77], np.int64)
PARAMETERS = (
    *("scores", "queries", "keys", "stride", "query_positions", "first_key", "head", "entry"),
    "user_data",
)
CTYPES = [POINTER(c_float), *[c_int64] * 3, POINTER(c_int64), *[c_int64] * 3, c_void_p]


def twice_and_more(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
    """Replace a score by 2 * score plus all other arguments, so that an argument in the wrong place
    shows."""
    addend = ctypes.cast(user_data, POINTER(c_float))[0] if user_data else 0
    for q in range(queries):
        for k in range(keys):
            distance = positions[q] - (first_key + k)
            scores[k * stride + q] = (
                2 * scores[k * stride + q] + distance + 10 * head + 100 * entry + addend
            )


def two(scores, queries, keys, stride, *others):
    """Replace a score by the derivative of twice_and_more."""
    for q in range(queries):
        for k in range(keys):
            scores[k * stride + q] = 2


@cache
def in_c(dtype, function=twice_and_more):
    return ScoreFunction.c_type(dtype)(function)


def address_of(dtype, function=twice_and_more):
    return ctypes.cast(in_c(dtype, function), c_void_p).value


def call(address, dtype, user_data=None):
    """Return a tile, (queries, keys), before and after a call of the function. The numbers between
    its rows must not change."""
    scores = np.arange(KEYS * STRIDE, dtype=dtype)
    before = scores.copy()
    ScoreFunction.c_type(dtype)(address)(
        *(np.ctypeslib.as_ctypes(scores), QUERIES, KEYS, STRIDE),
        *(np.ctypeslib.as_ctypes(POSITIONS), FIRST_KEY, HEAD, ENTRY, user_data or None),
    )
    before, after = before.reshape(KEYS, STRIDE), scores.reshape(KEYS, STRIDE)
    assert np.array_equal(after[:, QUERIES:], before[:, QUERIES:])
    return before[:, :QUERIES].T, after[:, :QUERIES].T


def assert_computes(score_function, dtype, addend=0):
    """Check that the function is twice_and_more, and that the derivative, if there is one, is
    two."""
    assert score_function.dtype == np.dtype(dtype)
    data = score_function.user_data_address
    before, after = call(score_function.address, dtype, data)
    distances = POSITIONS[:, None] - (FIRST_KEY + np.arange(KEYS))
    assert np.array_equal(after, 2 * before + distances + 10 * HEAD + 100 * ENTRY + addend)
    if score_function.derivative_address:
        _, after = call(score_function.derivative_address, dtype, data)
        assert np.array_equal(after, np.full((QUERIES, KEYS), 2))


# Functions


def of_library(dtype, argtypes=None, restype=c_int):
    """Return a function as a CDLL has it, whose types may have been set."""
    function = ctypes.CDLL(None)._FuncPtr(address_of(dtype))
    function.argtypes, function.restype = argtypes, restype
    return function


def of_cffi(dtype):
    cffi = pytest.importorskip("cffi", reason="cffi is not installed").FFI()
    return int(cffi.cast("uintptr_t", cffi.cast("void*", address_of(dtype))))


def types_of(dtype):
    return ScoreFunction.c_type(dtype)._argtypes_


# Every kind of function, and whether its types are known.
FUNCTIONS = {
    "address": (address_of, False),
    "np.uint64": (lambda dtype: np.uint64(address_of(dtype)), False),
    "c_void_p": (lambda dtype: c_void_p(address_of(dtype)), False),
    "cffi": (of_cffi, False),
    "CDLL": (of_library, False),
    "CDLL with argtypes": (lambda dtype: of_library(dtype, types_of(dtype), None), True),
    "CDLL with a result not set": (lambda dtype: of_library(dtype, types_of(dtype)), True),
    "CFUNCTYPE": (in_c, True),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions_of_every_library(kind, dtype):
    make, is_typed = FUNCTIONS[kind]
    function = make(dtype)
    assert_computes(ScoreFunction(function, dtype=dtype), dtype)
    assert_computes(ScoreFunction(function, address_of(dtype, two), dtype=np.dtype(dtype)), dtype)
    if not is_typed:
        with pytest.raises(TypeError, match="dtype must be float32 or float64"):
            ScoreFunction(function)
        return
    assert_computes(ScoreFunction(function), dtype)
    other = "float64" if dtype == "float32" else "float32"
    with pytest.raises(TypeError, match=r"function must take .* scores"):
        ScoreFunction(function, dtype=other)
    with pytest.raises(TypeError, match=r"derivative must take .* scores"):
        ScoreFunction(1, function, dtype=other)


def test_functions_of_numba():
    numba = pytest.importorskip("numba", reason="Numba is not installed")

    @numba.cfunc(ScoreFunction.numba_signature("float32"))
    def function(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
        addends = numba.carray(user_data, 1, np.float32)
        for q in range(queries):
            for k in range(keys):
                distance = positions[q] - (first_key + k)
                scores[k * stride + q] = (
                    2 * scores[k * stride + q] + distance + 10 * head + 100 * entry + addends[0]
                )

    addend = np.array([0.5], np.float32)
    assert_computes(ScoreFunction(function.ctypes, None, addend), "float32", 0.5)
    assert_computes(ScoreFunction(function.address, None, addend, dtype="f4"), "float32", 0.5)
    with pytest.raises(TypeError, match=r"Numba .* pass its \.ctypes"):
        ScoreFunction(function)
    with pytest.raises(TypeError, match=r"numba\.cfunc\(.*float64.* pass its \.ctypes"):
        ScoreFunction(numba.njit(two), dtype="float64")


def with_type(name, kind):
    number = PARAMETERS.index(name)
    return ctypes.CFUNCTYPE(None, *CTYPES[:number], kind, *CTYPES[number + 1 :])(1)


# Functions with another signature, and objects that cannot be user data.
ADVICE = r"function must be a C function.*GIL.*numba\.cfunc.*numba_signature\(.float32"
REFUSED = [
    ({"function": two}, TypeError, ADVICE),  # it can be called, so there is advice
    *(
        ({"function": thing}, TypeError, "function must be a C function")
        for thing in (None, True, 1.5, b"f", np.ones(2))
    ),
    ({"derivative": 1.5}, TypeError, "derivative must be a C function"),
    *(
        ({name: address}, ValueError, f"{name} must have an address")
        for name in ("function", "derivative", "user_data")
        for address in (0, -1, 2**64, c_void_p())
    ),
    *(
        ({"function": with_type(name, kind)}, TypeError, f"{name} as argument")
        for name, kinds in {
            "scores": (c_float, POINTER(c_int32), POINTER(ctypes.c_longdouble)),
            "queries": (c_int32, c_uint64, c_double, c_void_p),
            "query_positions": (c_int64, POINTER(c_int32), POINTER(c_uint64)),
            "entry": (c_int32,),
            "user_data": (c_int64, c_double, ctypes.py_object),
        }.items()
        for kind in kinds
    ),
    *(
        ({"function": ctypes.CFUNCTYPE(None, *[*CTYPES, c_void_p][:n])(1)}, TypeError, "9 argum")
        for n in (0, 8, 10)
    ),
    ({"function": ctypes.CFUNCTYPE(c_int, *CTYPES)(1)}, TypeError, "must return void"),
    ({"function": ctypes.PYFUNCTYPE(None, *CTYPES)(1)}, TypeError, "must not need the GIL"),
    ({"function": ctypes.pythonapi.Py_IncRef}, TypeError, "must not need the GIL"),
    *(
        ({"user_data": thing}, TypeError, "user_data must be")
        for thing in (1.5, b"bytes", [1.0], two, ctypes.byref(c_float(1)), np.ones(2, ">f4"))
    ),
    *(
        ({"user_data": array}, ValueError, "user_data must be C-contiguous and aligned")
        for array in (np.ones(4)[::-1], np.zeros(17, np.uint8)[1:].view(np.float64))
    ),
]


@pytest.mark.parametrize(("arguments", "error", "message"), REFUSED)
def test_what_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        ScoreFunction(**{"function": 1} | arguments, dtype="float32")


def test_pointers_without_types_are_accepted():
    types = [each if each is c_int64 else c_void_p for each in CTYPES]
    function = ctypes.CFUNCTYPE(None, *types)(1)
    assert ScoreFunction(function, dtype="float64").dtype == np.float64
    with pytest.raises(TypeError, match="dtype must be"):
        ScoreFunction(function)


# User data


class Pair(ctypes.Structure):
    _fields_ = (("first", c_float), ("second", c_int))


KEPT = np.array([2.5, 1.0], np.float32)  # which an address does not keep alive
TEXT = ctypes.create_string_buffer(np.float32(2.5).tobytes())
# User data whose first number is 2.5.
USER_DATA = {
    "array": KEPT,
    "array without axes": np.array(2.5, np.float32),
    "structured array": np.array([(2.5, 1)], [("first", "f4"), ("second", "i8")]),
    "read-only array": np.frombuffer(KEPT.tobytes(), np.float32),
    "int": KEPT.ctypes.data,
    "c_void_p": c_void_p(KEPT.ctypes.data),
    "data_as": KEPT.ctypes.data_as(POINTER(c_float)),
    "number": c_float(2.5),
    "ctypes array": (c_float * 2)(2.5, 1),
    "structure": Pair(2.5, 1),
    "c_char_p": ctypes.cast(TEXT, ctypes.c_char_p),
}


@pytest.mark.parametrize("kind", USER_DATA)
def test_user_data_of_every_kind(kind):
    function = ScoreFunction(in_c("float32"), user_data=USER_DATA[kind])
    assert type(function.user_data_address) is int
    assert_computes(function, "float32", 2.5)


# The handle


class Tracked(np.ndarray):
    pass


class TrackedFloats(c_float * 2):
    pass


def test_functions_and_user_data_stay_alive():
    for make, way in (
        (lambda: np.array([2.5], np.float32).view(Tracked), lambda memory: memory),
        (lambda: TrackedFloats(2.5, 1), lambda memory: memory),
        (lambda: TrackedFloats(2.5, 1), ctypes.pointer),
    ):
        data = make()
        function, derivative = (ScoreFunction.c_type()(two) for _ in range(2))
        gone = [weakref.ref(each) for each in (data, function, derivative)]
        handle = ScoreFunction(function, derivative, way(data))
        del data, function, derivative
        gc.collect()
        assert all(each() is not None for each in gone)
        del handle
        gc.collect()
        assert all(each() is None for each in gone)


def test_a_handle_is_immutable_and_equal_to_itself():
    one, other = (ScoreFunction(1, 2, 3, dtype="float32") for _ in range(2))
    for name in ("dtype", "address", "derivative_address", "user_data_address", "other"):
        with pytest.raises(AttributeError):
            setattr(one, name, 5)
        with pytest.raises(AttributeError):
            delattr(one, name)
    assert (one.address, one.derivative_address, one.user_data_address) == (1, 2, 3)
    assert ScoreFunction(1, dtype="f4").user_data_address == 0
    assert one != other
    assert len({one, other, one}) == 2
    assert copy.copy(one) is copy.deepcopy([one])[0] is one
    with pytest.raises(TypeError, match="another process"):
        pickle.dumps(one)


def test_the_types_of_other_libraries():
    assert ScoreFunction.c_type() is ScoreFunction.c_type(np.float32)
    assert list(ScoreFunction.c_type("float32")._argtypes_) == CTYPES
    assert ScoreFunction.c_type("float64")._argtypes_[0] is POINTER(c_double)
    of_float64 = ScoreFunction.numba_signature("f8")
    assert of_float64.startswith("void(CPointer(float64), int64, int64, int64, CPointer(int64), ")
    assert ScoreFunction.numba_signature() == of_float64.replace("float64", "float32")
    with pytest.raises(TypeError, match="dtype must be float32 or float64"):
        ScoreFunction.c_type("float16")
