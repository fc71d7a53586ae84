"""Keys and values that may be larger than memory, cut into the chunks of a stream."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array
from regard._arguments.foreign import has_uncomputed_chunks, is_on_cuda
from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count
from regard._runtime.public import public
from regard._show.shows_options import ShowsOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from regard._arguments.arrays import Array

_DEFAULT_BYTES = 64 << 20
# The chunk length of the kernels, so that the tasks of a chunk have equal sizes.
_KERNEL_CHUNK = 1536
# The protocols of objects that share their memory.
_IN_MEMORY = ("__dlpack__", "__array_interface__", "__array_struct__", "__buffer__")


class _Sliceable:
    """An array-like object that NumPy itself cannot read, or whose dtype is not a NumPy dtype."""

    def __init__(self, array: Any) -> None:
        self._array, self.shape = array, tuple(array.shape)
        self.dtype = np.asarray(array[..., :0]).dtype
        self.shards, self.chunks = (getattr(array, name, None) for name in ("shards", "chunks"))

    def __getitem__(self, index: Any) -> Any:
        return self._array[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self._array[...], dtype)


class _Slice:
    """Some keys of an array that is read when NumPy asks for it."""

    def __init__(self, array: Any, start: int, stop: int) -> None:
        self._array, self._keys = array, (..., slice(start, stop), slice(None))
        self.shape = (*array.shape[:-2], stop - start, array.shape[-1])
        self.dtype = array.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        part = self._array[self._keys]
        if has_uncomputed_chunks(part):
            part = part.compute()
        array = as_array("a part of keys or values", part)
        # Objects may decode into the same buffer repeatedly.
        return array if isinstance(self._array, np.ndarray) else np.array(array, dtype)


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
    can_be_cut = value.shape and hasattr(value, "dtype") and hasattr(value, "__getitem__")
    return _Sliceable(value) if can_be_cut and not is_in_memory else as_array(name, value)


def unread_pair(key: Any, value: Any, chunk: str = "") -> tuple[Any, Any]:
    """Return keys and values that have not been read, or raise TypeError or ValueError."""
    pair = unread(f"{chunk}key", key), unread(f"{chunk}value", value)
    for name, array in zip(("key", "value"), pair, strict=True):
        if len(array.shape) < 2:
            raise ValueError(
                f"{chunk}{name} must have at least 2 dimensions, (length, dim), got shape "
                f"{tuple(array.shape)}"
            )
    lengths = [array.shape[-2] for array in pair]
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"{chunk}key and value must share kv_len, got {lengths[0]} and {lengths[1]}"
        )
    return pair


@public
class KeyValueChunks(ShowsOptions):
    """Cut two arrays of keys and values into chunks for `attend_stream`.

    The object can be iterated repeatedly, and its length is the number of chunks. `attend_stream`
    reads only the chunks that a query can see.

    Parameters
    ----------
    key : array_like, shape (..., kv_heads, kv_len, head_dim)
        Any object with a shape and a dtype that can be sliced like an array: an array, a
        `numpy.memmap`, a Zarr array, an HDF5 dataset.
    value : array_like, shape (..., kv_heads, kv_len, value_dim)
        Likewise.
    length : int, optional
        The number of keys per chunk; the last chunk may have fewer. Default: as many keys as fill
        64 MiB with their values, rounded to a multiple of the arrays' storage blocks (``shards`` or
        ``chunks``), or else of 1536, but at least one such block.

    Attributes
    ----------
    length : int
        The number of keys per chunk.
    kv_len : int
        The total number of keys.

    Raises
    ------
    TypeError
        If an array is masked or on a GPU.
    ValueError
        If an array has fewer than two dimensions, the two differ in kv_len, or `length` is less
        than 1.

    See Also
    --------
    attend_stream : attends to the chunks.

    Notes
    -----
    The bits of the result of `attend_stream` depend on how keys are cut, so record `length` if the
    bits matter. Arrays that are stored in blocks are read fastest if a chunk contains whole blocks.

    Arrays without keys yield one empty chunk.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> key, value = np.zeros((2, 8, 1000, 64), np.float32)
    >>> chunks = regard.KeyValueChunks(key, value, length=300)
    >>> len(chunks)
    4
    >>> [key.shape[-2] for key, value in chunks]
    [300, 300, 300, 100]
    """

    @refuses_unknown
    def __init__(self, key: Any, value: Any, *, length: int | None = None) -> None:
        self._key, self._value = unread_pair(key, value)
        self.kv_len = int(self._key.shape[-2])
        self.length = self._default_length() if length is None else count("length", length, 1)

    def _shown_options(self) -> dict[str, str]:
        arrays = {"key": self._key, "value": self._value}
        shown = {name: f"{tuple(x.shape)} of {x.dtype}" for name, x in arrays.items()}
        return {**shown, "length": f"{self.length}"}

    def _default_length(self) -> int:
        arrays = self._key, self._value
        bytes_of_key = sum(
            math.prod((*array.shape[:-2], array.shape[-1], array.dtype.itemsize))
            for array in arrays
        )
        block = max((_stored_length(array) for array in arrays), default=0) or _KERNEL_CHUNK
        blocks: int = _DEFAULT_BYTES // max(bytes_of_key, 1) // block
        return max(1, blocks) * block

    def __len__(self) -> int:
        return max(1, -(-self.kv_len // self.length))

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        return ((np.asarray(key), np.asarray(value)) for key, value in self.unread())

    def unread(self) -> Iterator[tuple[_Slice, _Slice]]:
        """Yield the chunks as objects that are read when NumPy asks for them."""
        for start in range(0, max(self.kv_len, 1), self.length):
            stop = min(start + self.length, self.kv_len)
            yield _Slice(self._key, start, stop), _Slice(self._value, start, stop)


def _stored_length(array: Any) -> int:
    """Return the number of keys per storage block of an array, or 0 if it does not report one."""
    for name in ("shards", "chunks"):
        blocks = getattr(array, name, None)
        if isinstance(blocks, tuple) and isinstance(blocks[-2], int):
            return int(blocks[-2])
    return 0
