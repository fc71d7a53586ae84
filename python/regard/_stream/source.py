"""Cut keys and values, given as two arrays, into the chunks of a stream."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count
from regard._runtime.public import public
from regard._show.shows_options import ShowsOptions
from regard._stream.arrays import Slice, unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Array = NDArray[Any]

_DEFAULT_BYTES = 64 << 20
# The chunk length of the kernels, so that the tasks of a chunk have equal sizes.
_KERNEL_CHUNK = 1536


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
        self._key, self._value = unread("key", key), unread("value", value)
        for name, array in (("key", self._key), ("value", self._value)):
            if len(array.shape) < 2:
                raise ValueError(
                    f"{name} must have at least 2 dimensions, (length, dim), got shape "
                    f"{tuple(array.shape)}"
                )
        self.kv_len = int(self._key.shape[-2])
        if self._value.shape[-2] != self.kv_len:
            raise ValueError(
                f"key and value must share kv_len, got {self.kv_len} and {self._value.shape[-2]}"
            )
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

    def unread(self) -> Iterator[tuple[Slice, Slice]]:
        """Yield the chunks as objects that are read when NumPy asks for them."""
        return map(self._slices, range(len(self)))

    def _slices(self, number: int) -> tuple[Slice, Slice]:
        start = number * self.length
        stop = min(start + self.length, self.kv_len)
        return Slice(self._key, start, stop), Slice(self._value, start, stop)


def _stored_length(array: Any) -> int:
    """Return the number of keys per storage block of an array, or 0 if it does not report one."""
    for name in ("shards", "chunks"):
        blocks = getattr(array, name, None)
        if isinstance(blocks, tuple) and isinstance(blocks[-2], int):
            return int(blocks[-2])
    return 0
