"""Test the user data of C score functions, and how long functions and data stay alive."""

import ctypes
import gc
import weakref
from ctypes import POINTER, c_float, c_int, c_void_p

import numpy as np
import pytest

from messages import says
from regard import ScoreFunction
from score_functions import KEPT, assert_computes, call, in_python, with_argtypes


class Pair(ctypes.Structure):
    _fields_ = (("first", c_float), ("second", c_int))


class Either(ctypes.Union):
    _fields_ = (("first", c_float), ("second", c_int))


def pointer_to(number):
    memory = c_float(number)
    return ctypes.pointer(memory), ctypes.addressof(memory)


def at_its_own(memory):
    return memory, ctypes.addressof(memory)


def as_text():
    memory = ctypes.create_string_buffer(np.float32(2.5).tobytes())
    pointer = ctypes.cast(memory, ctypes.c_char_p)
    pointer.memory = memory
    return pointer, ctypes.addressof(memory)


def of_array(array, kind=lambda array: array):
    KEPT.append(array)
    return kind(array), array.ctypes.data


NUMBERS = np.array([2.5, 1.0], np.float32)
STRUCTURED = np.array([(2.5, 1)], [("first", "f4"), ("second", "i8")])
# User data whose first number is 2.5, and its address.
USER_DATA = {
    "array": lambda: of_array(NUMBERS),
    "matrix": lambda: of_array(np.full((2, 3), 2.5, np.float32)),
    "array without axes": lambda: of_array(np.array(2.5, np.float32)),
    "structured array": lambda: of_array(STRUCTURED),
    "read-only array": lambda: of_array(np.frombuffer(NUMBERS.tobytes(), np.float32)),
    "int": lambda: of_array(NUMBERS, lambda array: array.ctypes.data),
    "np.uint64": lambda: of_array(NUMBERS, lambda array: np.uint64(array.ctypes.data)),
    "c_void_p": lambda: of_array(NUMBERS, lambda array: c_void_p(array.ctypes.data)),
    "data_as": lambda: of_array(NUMBERS, lambda array: array.ctypes.data_as(POINTER(c_float))),
    "pointer": lambda: pointer_to(2.5),
    "number": lambda: at_its_own(c_float(2.5)),
    "ctypes array": lambda: at_its_own((c_float * 2)(2.5, 1)),
    "structure": lambda: at_its_own(Pair(2.5, 1)),
    "union": lambda: at_its_own(Either(2.5)),
    "c_char_p": as_text,
}


@pytest.mark.parametrize("kind", USER_DATA)
def test_user_data_of_every_kind(kind, library):
    data, address = USER_DATA[kind]()
    function = ScoreFunction(with_argtypes(library, "float32"), user_data=data)
    assert function.user_data_address == address
    assert type(function.user_data_address) is int
    del data
    assert_computes(function, "float32", 2.5)


def test_no_user_data(library):
    function = ScoreFunction(with_argtypes(library, "float32"))
    assert function.user_data_address == function.derivative_address == 0


@pytest.mark.parametrize(
    "thing",
    [
        *(1.5, "text", b"bytes", bytearray(4), memoryview(b"four"), [1.0], (1.0,), True, object()),
        *(np.float32(1), ctypes.byref(c_float(1)), ctypes.py_object([]), c_float, in_python),
        *(np.array(["text", None], object), np.ones(2, ">f4")),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_other_user_data_are_refused(thing):
    with pytest.raises(TypeError, match=says("user_data")):
        ScoreFunction(1, user_data=thing, dtype="float32")


@pytest.mark.parametrize(
    "array",
    [
        np.ones((4, 4))[:, :2],
        np.ones((4, 4)).T[:2],
        np.ones(4)[::-1],
        np.zeros(17, np.uint8)[1:].view(np.float64),
    ],
)
def test_arrays_with_gaps_are_refused(array):
    with pytest.raises(ValueError, match=says("user_data", "C-contiguous", "aligned", "strides")):
        ScoreFunction(1, user_data=array, dtype="float32")


class Tracked(np.ndarray):
    pass


class TrackedFloats(c_float * 2):
    pass


def test_functions_and_user_data_stay_alive():
    array = np.array([2.5], np.float32).view(Tracked)
    function, derivative = ScoreFunction.c_type()(in_python), ScoreFunction.c_type()(in_python)
    gone = [weakref.ref(each) for each in (array, function, derivative)]
    handle = ScoreFunction(function, derivative, array)
    del array, function, derivative
    gc.collect()
    assert all(each() is not None for each in gone)
    _, after = call(handle.address, "float32", handle.user_data_address)
    assert np.array_equal(
        after, call(handle.derivative_address, "float32", gone[0]().ctypes.data)[1]
    )
    del handle
    gc.collect()
    assert all(each() is None for each in gone)


def test_memory_of_ctypes_stays_alive():
    memory = TrackedFloats(2.5, 1)
    gone = weakref.ref(memory)
    pointer = ctypes.pointer(memory)
    direct = ScoreFunction(1, user_data=memory, dtype="float32")
    through = ScoreFunction(1, user_data=pointer, dtype="float32")
    del memory, pointer, direct
    gc.collect()
    assert gone() is not None
    assert through.user_data_address == ctypes.addressof(gone())
    del through
    gc.collect()
    assert gone() is None
