"""XLA's foreign function interface, with a Python function as the handler.

XLA calls a C function with a structure that contains the addresses of its buffers. The structures
are declared here with the layout of version 0.3 of the interface, so building regard requires
neither JAX nor its headers. The handler reads arguments and writes results in place.

`jax.pure_callback` would copy both. It also creates JAX arrays within the callback, which can
deadlock waiting for a thread that the callback itself occupies. A handler must not call JAX.
"""

from __future__ import annotations

import atexit
import ctypes
import math
from contextlib import contextmanager, suppress
from ctypes import POINTER, c_char, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from regard.jax._computation import Computation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_TARGET = "regard_attention"
_VERSION = 0, 3
_METADATA = 1
_CANCELLED, _INVALID_ARGUMENT, _RESOURCE_EXHAUSTED, _INTERNAL = 1, 3, 8, 13
# FE_DFL_ENV of C's <fenv.h>, and a size larger than any fenv_t.
_DEFAULT_ENVIRONMENT = c_void_p(-1)
_ROOM_FOR_ENVIRONMENT = 256
_libm = ctypes.PyDLL(None)
_TYPES = {
    1: np.bool_,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.uint8,
    7: np.uint16,
    8: np.uint32,
    9: np.uint64,
    10: np.float16,
    11: np.float32,
    12: np.float64,
    16: jnp.bfloat16,
}


class _Extension(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("type", c_int), ("next", c_void_p))


class _Version(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("next", c_void_p), ("major", c_int), ("minor", c_int))


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("version", _Version),
        ("traits", c_uint32),
        ("state_type", c_int64),
    )


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("extension", _Extension), ("metadata", POINTER(_Metadata)))


class _ErrorArguments(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("next", c_void_p), ("message", c_char_p), ("code", c_int))


class _Api(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("next", c_void_p),
        ("version", _Version),
        ("internal", c_void_p),
        ("create_error", ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArguments))),
    )


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("next", c_void_p),
        ("type", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("shape", POINTER(c_int64)),
    )


class _Buffers(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("next", c_void_p),
        ("count", c_int64),
        ("kinds", POINTER(c_int)),
        ("each", POINTER(POINTER(_Buffer))),
    )


class _Text(ctypes.Structure):
    _fields_ = (("data", POINTER(c_char)), ("length", c_size_t))


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("next", c_void_p),
        ("count", c_int64),
        ("kinds", POINTER(c_int)),
        ("names", c_void_p),
        ("each", POINTER(POINTER(_Text))),
    )


class _CallFrame(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("next", POINTER(_Extension)),
        ("api", POINTER(_Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    )


class Result(NamedTuple):
    """The shape and type of an array that a computation returns."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def call(what: Computation, results: tuple[Result, ...], arrays: Sequence[Any]) -> list[Any]:
    """Compute with JAX arrays, now or when XLA runs.

    The program contains the computation as text, so it has the same meaning in another process.
    Under `jax.vmap`, all arrays have an additional leading axis, of size 1 in unmapped arrays.
    """
    if all(0 in result.shape for result in results):
        return [jnp.zeros(*result) for result in results]
    _end_without_threads()
    types = [jax.ShapeDtypeStruct(*result) for result in results]
    called = jax.ffi.ffi_call(_TARGET, types, vmap_method="expand_dims")
    return list(called(*arrays, computation=what.as_text()))


def _array(buffer: _Buffer, *, is_writeable: bool) -> NDArray[Any]:
    """Return a view of an XLA buffer."""
    shape = tuple(buffer.shape[: buffer.rank])
    dtype = np.dtype(_TYPES[buffer.type])
    size = math.prod(shape) * dtype.itemsize
    if size == 0:  # its address may be null
        return np.empty(shape, dtype)
    array = np.ndarray(shape, dtype, (c_char * size).from_address(buffer.data))
    array.flags.writeable = is_writeable
    return array


def _arrays(buffers: _Buffers, *, is_writeable: bool) -> list[NDArray[Any]]:
    each = (buffers.each[i].contents for i in range(buffers.count))
    return [_array(buffer, is_writeable=is_writeable) for buffer in each]


def _execute(frame: _CallFrame) -> None:
    text = frame.attributes.each[0].contents
    computation = Computation.of_text(text.data[: text.length].decode())
    results = _arrays(frame.results, is_writeable=True)
    with _ieee_arithmetic():
        computation(_arrays(frame.arguments, is_writeable=False), results)


@contextmanager
def _ieee_arithmetic() -> Iterator[None]:
    """Enable subnormal numbers, which XLA's threads treat as zeros."""
    before = ctypes.create_string_buffer(_ROOM_FOR_ENVIRONMENT)
    _libm.fegetenv(before)
    _libm.fesetenv(_DEFAULT_ENVIRONMENT)
    try:
        yield
    finally:
        _libm.fesetenv(before)


def _handle(pointer: Any) -> int | None:
    """Handle a call from XLA, and return None or the address of an error."""
    frame = pointer.contents
    if frame.next and frame.next.contents.type == _METADATA:  # when the handler is registered
        extension = ctypes.cast(frame.next, POINTER(_MetadataExtension)).contents
        version = extension.metadata.contents.version
        version.major, version.minor = _VERSION
        extension.metadata.contents.traits = 0
        return None
    try:
        _execute(frame)
    except BaseException as error:  # an exception cannot pass through XLA
        code = _CANCELLED if isinstance(error, KeyboardInterrupt) else _INTERNAL
        if isinstance(error, TypeError | ValueError):
            code = _INVALID_ARGUMENT
        elif isinstance(error, MemoryError):
            code = _RESOURCE_EXHAUSTED
        message = f"{type(error).__name__}: {error}".encode()
        details = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message, code)
        made: int = frame.api.contents.create_error(ctypes.byref(details))
        return made
    return None


@cache
def _end_without_threads() -> None:
    atexit.register(_keep_clients)


def _keep_clients() -> None:
    """Keep XLA's clients alive, so that the process can end without joining their threads.

    A destroyed client joins its threads. A thread in the middle of a call needs Python in order to
    return, but Python has already ended, so the process would hang. An additional reference keeps
    the client alive.
    """
    with suppress(RuntimeError):  # JAX is configured without a CPU backend
        for device in jax.local_devices(backend="cpu"):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(device.client))


_handler = ctypes.CFUNCTYPE(c_void_p, POINTER(_CallFrame))(_handle)
jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(_handler), platform="cpu")
