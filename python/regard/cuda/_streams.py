"""Streams as the integers that the CUDA array protocols use."""

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakKeyDictionary

from regard._arguments.numbers import count

# For CUDA, 0 is the same stream, but the array protocols do not define it.
LEGACY = 1
PER_THREAD = 2


def stream_of(stream: Any, array: Any) -> int:
    """Return the stream that a caller passed, or the current stream of the library of `array`.

    A stream is an integer (a handle, or 0, 1 or 2 for CUDA's default streams), or a PyTorch, CuPy,
    Numba or cuda.core object.
    """
    if stream is None:
        return normal(_current(array))
    return normal(_handle(stream))


def normal(handle: int) -> int:
    """Return a handle as the array protocols represent it."""
    return handle or LEGACY


def _handle(stream: Any) -> int:
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for attribute in ("cuda_stream", "ptr"):  # PyTorch's and CuPy's
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    if hasattr(stream, "handle"):  # Numba's
        return int(getattr(stream.handle, "value", stream.handle) or 0)
    if isinstance(stream, bool) or not hasattr(stream, "__index__"):
        raise TypeError(
            "stream must be None, an integer or a PyTorch, CuPy, Numba or cuda.core stream, "
            f"got {type(stream).__name__}"
        )
    return count("stream", stream)


def _current(array: Any) -> int:
    library = library_of(array)
    if library == "torch":
        return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream)
    if library == "cupy":
        return int(sys.modules["cupy"].cuda.get_current_stream(array.device.id).ptr)
    interface = getattr(array, "__cuda_array_interface__", None)
    stream = interface.get("stream") if isinstance(interface, dict) else None
    return stream if isinstance(stream, int) else LEGACY


def library_of(array: Any) -> str:
    """Return "torch" or "cupy" for arrays of these libraries and their subclasses, else ""."""
    kind = type(array)
    if kind not in _libraries:
        roots = (base.__module__.partition(".")[0] for base in kind.__mro__)
        _libraries[kind] = next((root for root in roots if root in ("torch", "cupy")), "")
    return _libraries[kind]


_libraries: WeakKeyDictionary[type, str] = WeakKeyDictionary()
