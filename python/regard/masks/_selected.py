"""Masks that list the keys of each query."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, integers
from regard.masks import _cells, _intervals
from regard.masks._ranges import Ranges
from regard.masks._rows import Layout

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Selected(Ranges):
    """A sparse mask in which each query sees the keys whose numbers are listed.

    This is the mask of models that select the keys of each query by an index, such as DeepSeek
    V3.2. The operators ``&``, ``|``, ``^`` and ``~`` give `Ranges`. See `SparseMask` for the
    operators, views and properties.

    Parameters
    ----------
    indices : integer array, shape (..., heads or 1, q_len, n)
        The numbers of the keys, or of the blocks of keys, that each query sees, in any order.
        Repeated numbers count once. -1 stands for no key, so queries may see different numbers of
        keys. An array with two axes gives a mask of shape ``(q_len, kv_len)``.
    block : int, default 1
        Number of keys in a block. Block ``b`` contains the keys
        ``b * block .. (b + 1) * block - 1``; the last block may be shorter.
    kv_len : int, optional
        Number of keys. By default, it is the end of the last key or block listed.

    Raises
    ------
    TypeError
        If `indices`, `block` or `kv_len` are not integers.
    ValueError
        If `indices` has fewer than two axes, or contains a number below -1 or of a key or block
        that is not among the `kv_len` keys.

    See Also
    --------
    regard.masks.Blocks : Show any pattern, in blocks.

    Notes
    -----
    The mask occupies 24 bytes for each run of consecutive keys.

    Examples
    --------
    >>> import regard
    >>> mask = regard.masks.Selected([[0, -1], [1, 0], [3, 0]])
    >>> mask.to_dense().astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [1, 0, 0, 1]])
    >>> regard.masks.Selected([[0], [2]], block=2, kv_len=5).to_dense().astype(int)
    array([[1, 1, 0, 0, 0],
           [0, 0, 0, 0, 1]])
    """

    __slots__ = ()

    @refuses_unknown
    def __init__(
        self, indices: ArrayLike, *, block: SupportsIndex = 1, kv_len: SupportsIndex | None = None
    ) -> None:
        listed, size = integers("indices", indices, "an integer array"), count("block", block, 1)
        if listed.ndim < 2:
            raise ValueError(
                "indices must have at least 2 axes, (..., q_len, n), the keys of each query, got "
                f"shape {listed.shape}"
            )
        listed = listed.astype(np.int64)
        least, most = int(listed.min(initial=0)), int(listed.max(initial=-1))
        if least < -1:
            raise ValueError(f"indices must be numbers of keys, or -1 for no key, got {least}")
        keys = (most + 1) * size if kv_len is None else count("kv_len", kv_len)
        if most * size >= keys:
            what = "keys" if size == 1 else f"blocks of {size}"
            raise ValueError(
                f"indices must list {what} within kv_len={keys}, numbers less than "
                f"{-(-keys // size)}, got {most}"
            )
        *planes, q_len, _ = listed.shape
        layout = Layout((*planes,), q_len, keys, None)
        layout.check(listed.size)
        # Runs of consecutive numbers begin and end at gaps; -2 joins no run.
        ordered = np.sort(np.where(listed < 0, -2, listed), axis=-1)
        is_gap = np.ones((*ordered.shape[:-1], ordered.shape[-1] + 1), bool)
        np.greater(np.diff(ordered), 1, out=is_gap[..., 1:-1])
        is_key = ordered >= 0
        row = np.arange(layout.all_rows).reshape(*listed.shape[:-1], 1) * layout.step
        whole = _intervals.Intervals(
            (row + ordered * size)[is_gap[..., :-1] & is_key],
            (row + np.minimum((ordered + 1) * size, keys))[is_gap[..., 1:] & is_key],
        )
        self._set(_cells.rows_of(_cells.only_whole(whole, layout), layout), None)
