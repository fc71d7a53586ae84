"""Inspect arrays that may be larger than memory, and read parts of them."""

from __future__ import annotations

import mmap
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array
from regard._arguments.foreign import has_uncomputed_chunks, is_on_cuda

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]

# The number of bytes that are copied from a mapped file between checks for a stop.
_PIECE_BYTES = 16 << 20


class Slice:
    """Some keys of an array that is read when NumPy asks for it."""

    def __init__(self, array: Any, start: int, stop: int) -> None:
        self.array, self._keys = array, (..., slice(start, stop), slice(None))
        self.shape = (*array.shape[:-2], stop - start, array.shape[-1])
        self.dtype = array.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        in_memory = as_array if isinstance(self.array, np.ndarray) else decoded
        # No variable holds the part, since `decoded` copies an array with other references.
        part = in_memory("a part of keys or values", _computed(self.array[self._keys]))
        return np.asarray(part, dtype)


def _computed(part: Any) -> Any:
    """Return the value of a Dask array, which KeyValueChunks has cut."""
    return part.compute() if has_uncomputed_chunks(part) else part


def unread(name: str, value: Any) -> Any:
    """Return an array, or an array-like object with a shape and a NumPy dtype."""
    if is_on_cuda(value):
        raise TypeError(f"{name} must be in the host's memory, got an array on a GPU")
    is_array_like = isinstance(getattr(value, "shape", None), tuple) and hasattr(value, "__array__")
    has_dtype = isinstance(getattr(value, "dtype", None), np.dtype)
    # NumPy scalars have both too, and masked arrays are refused.
    if is_array_like and has_dtype and not isinstance(value, np.ndarray | np.generic):
        return value
    return as_array(name, value)


def decoded(name: str, value: Any) -> Array:
    """Return an object as an array that no other code writes to.

    Objects may decode into the same buffer repeatedly, so an array is copied unless it owns its
    memory and has no other references.
    """
    array, known_here_only = as_array(name, value), np.empty(0)
    del value  # the value may be the array
    is_ours = sys.getrefcount(array) <= sys.getrefcount(known_here_only)
    return array if is_ours and array.flags.owndata else array.copy()


def is_in_file(array: Array) -> bool:
    """Return whether an array's memory is a mapped file, which is read on access."""
    memory: Any = array
    while memory is not None:
        if isinstance(memory, np.memmap | mmap.mmap):
            return True
        memory = memory.obj if isinstance(memory, memoryview) else getattr(memory, "base", None)
    return False


def read(name: str, value: Any, should_stop: Callable[[], bool]) -> tuple[Array, bool]:
    """Return keys or values in memory, and whether the memory belongs to the caller.

    Reading ends early, with the rest undefined, when `should_stop` returns True because the call
    has ended.
    """
    if isinstance(value, Slice) and isinstance(value.array, np.ndarray):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        return decoded(name, value), False
    if not is_in_file(value):
        return value, True
    copy = np.empty(value.shape, value.dtype)
    keys = value.shape[-2]
    step = max(1, keys * _PIECE_BYTES // max(value.nbytes, 1))
    for start in range(0, keys, step):
        if should_stop():
            break
        copy[..., start : start + step, :] = value[..., start : start + step, :]
    return copy, False
