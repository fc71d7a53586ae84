"""Masks of one interval of keys for each query."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from regard._arguments.arrays import is_floating, shown
from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import MOST, count, integers
from regard.masks._grid import rows_of_ranges
from regard.masks._rows import check_axes
from regard.masks._sparse import SparseMask

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class Ranges(SparseMask, has_blocks=False):
    """A sparse mask in which each query sees a range of keys.

    Query ``i`` sees key ``j`` iff ``first[i] <= j < last[i]``, as in a slice. The operators ``&``,
    ``|``, ``^`` and ``~`` make masks of several ranges for each query. See `SparseMask` for the
    operators, views and properties.

    Parameters
    ----------
    first, last : int or integer array
        The first visible key of each query, and the end after the last visible key. A query with
        ``last <= first`` is fully masked. Keys outside ``0 .. kv_len - 1`` are ignored. The two
        arrays broadcast to ``(q_len,)``, for a mask of shape ``(q_len, kv_len)``, or to
        ``(..., heads, q_len)``, for a mask of shape ``(..., heads, q_len, kv_len)``. Two integers
        give a mask of shape ``(1, kv_len)``, which shows these keys to all queries.
    kv_len : int, optional
        Number of keys. By default, it is the largest number in `last`.

    Raises
    ------
    TypeError
        If `first`, `last` or `kv_len` are not integers.
    ValueError
        If `first` and `last` do not broadcast, or `kv_len` is negative.

    See Also
    --------
    regard.masks.sliding, regard.masks.documents : Build common masks of ranges.
    regard.masks.Selected : List the keys of each query.
    regard.masks.Blocks : Show any pattern, in blocks.

    Notes
    -----
    A mask occupies 24 bytes for each range and 8 bytes for each query. In PyTorch or JAX, such a
    mask has ``q_len * kv_len`` bytes.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> mask = regard.masks.Ranges([0, 0, 1, 2], [1, 2, 3, 4])
    >>> mask.to_dense().astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1]])
    >>> mask
    Ranges(shape=(4, 4), 43.750% visible, 4 ranges, 136 bytes)

    The first key stays visible to all queries:

    >>> (mask | regard.masks.Ranges(0, 1)).to_dense().astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 0, 1, 1]])

    The mask of a prefix language model, in which each query sees the prefix and all earlier
    positions, for a million tokens:

    >>> n = 1_000_000
    >>> prefix = regard.masks.Ranges(0, np.maximum(np.arange(n) + 1, 1000))
    >>> print(prefix)
    Ranges(shape=(1000000, 1000000), 50.000% visible, 1000000 ranges, 32 MB)
    """

    __slots__ = ()

    @refuses_unknown
    def __init__(
        self, first: ArrayLike, last: ArrayLike, *, kv_len: SupportsIndex | None = None
    ) -> None:
        begin, end = _positions("first", first), _positions("last", last)
        keys = max(int(end.max(initial=0)), 0) if kv_len is None else count("kv_len", kv_len)
        try:
            np.broadcast_shapes(begin.shape, end.shape)
        except ValueError:
            raise ValueError(
                f"first and last must broadcast, got shapes {begin.shape} and {end.shape}"
            ) from None
        self._set(rows_of_ranges(begin, end, keys), None)

    def _stored(self) -> str:
        ranges = len(self._cells()[0].whole.first)
        return "1 range" if ranges == 1 else f"{ranges} ranges"


def _positions(name: str, value: ArrayLike) -> NDArray[np.int64]:
    """Return positions of keys, or raise TypeError or ValueError."""
    dtype = getattr(value, "dtype", None)
    if isinstance(value, float) or (isinstance(dtype, np.dtype) and is_floating(dtype)):
        raise TypeError(
            f"{name} must be an int or an integer array, got {shown(value)}: Ranges needs "
            "positions of keys; pass a float mask as mask=, or in a pair (sparse mask, float mask)"
        )
    if dtype == np.uint64:
        value = np.minimum(value, np.uint64(MOST))
    positions = integers(name, value).astype(np.int64)
    check_axes(name, positions.shape)
    return positions
