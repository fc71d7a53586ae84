"""Build sparse masks of global tokens, which see all tokens and are seen by all."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, integers
from regard.masks import _cells, _intervals
from regard.masks._blocks import DEFAULT_BLOCK, Blocks
from regard.masks._combine import as_blocks, wrapped
from regard.masks._grid import BitStore
from regard.masks._per_batch import diagonals
from regard.masks._ranges import Ranges
from regard.masks._rows import Layout

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard.masks._sparse import SparseMask

# More ranges for each query take more memory than shared blocks.
_MOST_RANGES = 4


@refuses_unknown
def global_tokens(
    tokens: ArrayLike,
    q_len: SupportsIndex,
    kv_len: SupportsIndex | None = None,
    *,
    query_offset: ArrayLike = 0,
) -> Ranges | Blocks:
    """Let some tokens attend to all keys, and all queries attend to these tokens.

    These are the global tokens of Longformer and BigBird: query ``i`` sees key ``j`` iff ``j`` or
    ``i + query_offset`` is one of `tokens`.

    Parameters
    ----------
    tokens : int or integer array, shape (n,)
        The positions of the global tokens, in ``0 .. kv_len - 1``. An int ``n`` means the first
        ``n`` tokens.
    q_len : int
        Number of queries.
    kv_len : int, optional
        Number of keys; `q_len` when not given.
    query_offset : int, integer array or "end", optional
        Number of keys that precede the first query, as in `causal`.

    Returns
    -------
    Ranges or Blocks
        Ranges if the tokens are in at most four groups of neighbors, Blocks otherwise. The shape is
        ``(q_len, kv_len)`` for one offset, and ``(*batch, 1, q_len, kv_len)`` for offsets of shape
        ``batch``.

    Raises
    ------
    TypeError
        If `tokens`, a length or an offset is not an integer.
    ValueError
        If a length is negative, or `tokens` has more than one axis or a token that does not exist.

    Examples
    --------
    >>> import regard
    >>> regard.masks.global_tokens([1], 4).to_dense().astype(int)
    array([[0, 1, 0, 0],
           [1, 1, 1, 1],
           [0, 1, 0, 0],
           [0, 1, 0, 0]])

    The mask of Longformer, with one global token before a document:

    >>> n = 4096
    >>> near = regard.masks.sliding(n, window=(256, 256))
    >>> near | regard.masks.global_tokens(1, n)
    Ranges(shape=(4096, 4096), 12.178% visible, 7934 ranges, 223 kB)
    """
    queries = count("q_len", q_len)
    keys = queries if kv_len is None else count("kv_len", kv_len)
    first, last = _intervals_of(tokens, keys)
    offsets = _row_offsets(query_offset, queries, keys)
    Layout(offsets.shape[:-1], queries, keys, None).check()
    tokens_seeing_all = _intervals.Intervals(first, last)
    sees_all = _intervals.contains(tokens_seeing_all, np.arange(queries) + offsets)
    layout = Layout((), 1, keys, None)
    columns = wrapped(_cells.only_whole(_intervals.Intervals(first, last), layout), layout)
    mask: Ranges | Blocks
    if len(first) > _MOST_RANGES:
        mask = _rows_in_blocks(sees_all, keys) | as_blocks(columns, DEFAULT_BLOCK)
    else:
        mask = Ranges(0, np.where(sees_all, keys, 0), kv_len=keys) | columns
    return mask


def _rows_in_blocks(sees_all: NDArray[np.bool_], kv_len: int) -> SparseMask:
    """Return a mask in which some queries see all keys. The blocks of a block row are equal."""
    height, width = DEFAULT_BLOCK
    layout = Layout(sees_all.shape[:-1], sees_all.shape[-1], kv_len, DEFAULT_BLOCK)
    layout.check()
    by_row = np.zeros((*layout.planes, layout.rows * height), bool)
    by_row[..., : layout.q_len] = sees_all
    by_row = by_row.reshape(layout.all_rows, height)
    row = np.nonzero(by_row.any(axis=1))[0]
    store = BitStore(DEFAULT_BLOCK)
    numbers = [np.zeros(0, np.int64)]
    for begin in range(0, len(row), 128):
        part = by_row[row[begin : begin + 128], :, None]
        numbers.append(store.add(np.broadcast_to(part, (*part.shape[:2], width))))
    layout.check(len(row) * -(-kv_len // width))
    key = np.arange(0, kv_len, width)
    place = (row[:, None] * layout.step + key).ravel()
    whole = _intervals.Intervals(place[:0], place[:0])
    number = np.repeat(np.concatenate(numbers), len(key))
    cells = _cells.Cells(whole, place, number, store.bits)
    return wrapped(_cells.trimmed(cells, layout, inner=True), layout)


def _intervals_of(tokens: ArrayLike, kv_len: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens as intervals, or raise TypeError or ValueError."""
    positions = integers("tokens", tokens)
    if positions.ndim > 1:
        raise ValueError(f"tokens must be an int or have one axis, got shape {positions.shape}")
    if positions.ndim == 0:
        end = count("tokens", int(positions), 0, kv_len)
        first, last = np.array([0]), np.array([end])
    else:
        outside = (positions < 0) | (positions >= kv_len)
        if outside.any():
            raise ValueError(
                f"tokens must be in 0 .. kv_len - 1 = {kv_len - 1}, got {positions[outside][0]}"
            )
        first = np.unique(positions.astype(np.int64))
        last = first + 1
    return _intervals.joined(first, last)


def _row_offsets(query_offset: ArrayLike, q_len: int, kv_len: int) -> NDArray[np.int64]:
    """Return the offsets, with an axis for heads and queries if there is one for each entry."""
    numbers = diagonals(query_offset, 0, q_len, kv_len)
    return numbers[..., 0] if numbers.ndim else numbers
