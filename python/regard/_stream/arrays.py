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
# The protocols of objects that share their memory.
_IN_MEMORY = ("__dlpack__", "__array_interface__", "__array_struct__", "__buffer__")


class Sliceable:
    """An array-like object that NumPy itself cannot read, or whose dtype is not a NumPy dtype."""

    def __init__(self, array: Any) -> None:
        self._array, self.shape = array, tuple(array.shape)
        self.dtype = np.asarray(array[..., :0]).dtype
        self.shards, self.chunks = (getattr(array, name, None) for name in ("shards", "chunks"))

    def __getitem__(self, index: Any) -> Any:
        return self._array[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self._array[...], dtype)


class Slice:
    """Some keys of an array that is read when NumPy asks for it."""

    def __init__(self, array: Any, start: int, stop: int) -> None:
        self.array, self._keys = array, (..., slice(start, stop), slice(None))
        self.shape = (*array.shape[:-2], stop - start, array.shape[-1])
        self.dtype = array.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.read("a part of keys or values"), dtype)

    def read(self, name: str) -> Array:
        """Return the keys as an array, whose memory is new unless `array` is a NumPy array."""
        in_memory = as_array if isinstance(self.array, np.ndarray) else decoded
        # No variable holds the part, since `decoded` copies an array with other references.
        return in_memory(name, _computed(self.array[self._keys]))


def _computed(part: Any) -> Any:
    """Return the value of a Dask array, which KeyValueChunks has cut."""
    return part.compute() if has_uncomputed_chunks(part) else part


def unread(name: str, value: Any) -> Any:
    """Return an array, or an array-like object with a shape and a NumPy dtype, which is not read.

    Objects that share their memory are arrays. Objects that NumPy cannot read must have slices.
    """
    if is_on_cuda(value):
        raise TypeError(f"{name} must be in the host's memory, got an array on a GPU")
    # NumPy scalars have a shape too, and masked arrays are refused.
    is_plain = isinstance(value, np.ndarray | np.generic)
    if is_plain or not isinstance(getattr(value, "shape", None), tuple):
        return as_array(name, value)
    if hasattr(value, "__array__") and isinstance(getattr(value, "dtype", None), np.dtype):
        return value
    is_in_memory = any(hasattr(value, protocol) for protocol in _IN_MEMORY)
    if (
        value.shape
        and hasattr(value, "dtype")
        and hasattr(value, "__getitem__")
        and not is_in_memory
    ):
        return Sliceable(value)
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
    if isinstance(value, Slice):
        if not isinstance(value.array, np.ndarray):
            return value.read(name), False
        value = value.read(name)
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
