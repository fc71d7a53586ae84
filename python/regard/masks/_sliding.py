"""Build sparse masks of sliding windows and global tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, integers, offsets, repeat, window_sides
from regard.masks import _cells, _intervals
from regard.masks._blocks import Blocks
from regard.masks._cells import Cells
from regard.masks._grid import BitStore
from regard.masks._intervals import NOTHING, Intervals, counted
from regard.masks._positions import diagonals, sizes
from regard.masks._ranges import Ranges
from regard.masks._rows import Layout
from regard.masks._sparse import DEFAULT_BLOCK, wrapped

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Bools, Integers
    from regard.masks._sparse import SparseMask


# More ranges for each query take more memory than shared blocks.
_MOST_RANGES = 4


@refuses_unknown
def sliding(
    q_len: SupportsIndex,
    kv_len: SupportsIndex | None = None,
    *,
    window: tuple[SupportsIndex | None, SupportsIndex | None],
    dilation: SupportsIndex = 1,
    query_offset: ArrayLike = 0,
) -> Ranges | Blocks:
    """Let each query attend to the keys near its own position, as a sparse mask.

    Query ``i`` is at position ``p = i + query_offset`` and sees key ``j`` iff
    ``p - left * dilation <= j <= p + right * dilation`` and ``p - j`` is a multiple of `dilation`.
    ``window=(None, 0)`` is the causal mask.

    Parameters
    ----------
    q_len, kv_len : int
        Number of queries and of keys. `kv_len` is `q_len` when not given.
    window : pair of int or None
        ``(left, right)``: the number of keys before and after its position that a query sees. None
        means no bound on that side.
    dilation : int, default 1
        The distance of neighboring keys in the window.
    query_offset : int, integer array or "end", optional
        Number of keys that precede the first query, as in `causal`.

    Returns
    -------
    Ranges or Blocks
        Ranges without dilation, Blocks with dilation. The shape is ``(q_len, kv_len)`` for one
        offset, and ``(*batch, 1, q_len, kv_len)`` for offsets of shape ``batch``.

    Raises
    ------
    TypeError
        If `window` is not a pair, or if a length, a side, an offset or `dilation` is not an
        integer.
    ValueError
        If a length or a side is negative, or `dilation` is less than 1.

    See Also
    --------
    regard.masks.window : The same without dilation, as a dense mask.
    regard.scaled_dot_product_attention : ``window=`` does the same without dilation and without a
        mask.

    Examples
    --------
    >>> import regard
    >>> regard.masks.sliding(5, window=(1, 0)).to_dense().astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [0, 1, 1, 0, 0],
           [0, 0, 1, 1, 0],
           [0, 0, 0, 1, 1]])
    >>> regard.masks.sliding(5, window=(1, 1), dilation=2).to_dense().astype(int)
    array([[1, 0, 1, 0, 0],
           [0, 1, 0, 1, 0],
           [1, 0, 1, 0, 1],
           [0, 1, 0, 1, 0],
           [0, 0, 1, 0, 1]])
    >>> regard.masks.sliding(1_000_000, window=(100, 0))
    Ranges(shape=(1000000, 1000000), 0.010% visible, 1000000 ranges, 32 MB)
    """
    queries, keys = sizes(q_len, kv_len)
    left, right = window_sides(window)
    distance = count("dilation", dilation, 1)
    own = diagonals(query_offset, 0, queries, keys)
    low, high = np.full_like(own, -queries), np.full_like(own, keys)
    if left is not None:
        low = diagonals(query_offset, -left * distance, queries, keys)
    if right is not None:
        high = diagonals(query_offset, right * distance, queries, keys)
    if own.ndim:
        low, high = low[..., 0], high[..., 0]
    layout = Layout(low.shape[:-1], queries, keys, None if distance == 1 else DEFAULT_BLOCK)
    layout.check(layout.all_rows if distance == 1 else 0)
    if distance == 1:
        row = np.arange(queries)
        return Ranges(row + low, row + high + 1, kv_len=keys)
    # Python's integers, since the dilation may not fit into the type of the offsets.
    places = offsets(query_offset, keys - queries, any_size=True).astype(object)
    if queries == 1:
        layout.check(int(np.sum((high - low) // distance)))
    mask = wrapped(_dilated(low, high, np.asarray(places % distance), distance, layout), layout)
    assert isinstance(mask, Blocks)
    return mask


def _dilated(
    low: Integers, high: Integers, residue: Integers, dilation: int, layout: Layout
) -> Cells:
    """Return the keys with ``low <= j - i <= high`` whose ``j - i`` has the residue.

    There is one number of each for every plane.
    """
    height, width = DEFAULT_BLOCK
    places, numbers = [NOTHING.first], [NOTHING.first]
    store = BitStore(DEFAULT_BLOCK)
    within = np.arange(width) - np.arange(height)[:, None]
    bounds = (np.asarray(each, np.int64).ravel() for each in (low, high, residue))
    for plane, (least, most, rest) in enumerate(zip(*bounds, strict=True)):
        block_row = np.arange(layout.rows)
        nearest, farthest = block_row * height + least, (block_row + 1) * height - 1 + most
        begin = np.maximum(nearest // width, 0)
        count = np.maximum(np.minimum(farthest // width + 1, layout.columns) - begin, 0)
        layout.check(int(count.sum()))
        row, column = repeat(block_row, count), counted(begin, count)
        places.append((plane * layout.rows + row) * layout.step + column * width)
        # The bits depend on the distance of a block's first key from its first query.
        distances, which = np.unique(column * width - row * height, return_inverse=True)
        patterns = [NOTHING.first]
        for first in range(0, len(distances), 128):
            away = within + distances[first : first + 128, None, None]
            visible = (away >= least) & (away <= most) & ((away - rest) % dilation == 0)
            patterns.append(store.add(np.packbits(visible, axis=-1, bitorder="little")))
        numbers.append(np.concatenate(patterns)[which])
    cells = Cells(NOTHING, np.concatenate(places), np.concatenate(numbers), store.bits)
    return _cells.trimmed(cells, layout)


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
    q_len, kv_len : int
        Number of queries and of keys. `kv_len` is `q_len` when not given.
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
    queries, keys = sizes(q_len, kv_len)
    seen = _intervals_of(tokens, keys)
    offsets = diagonals(query_offset, 0, queries, keys)
    if offsets.ndim:
        offsets = offsets[..., 0]
    Layout(offsets.shape[:-1], queries, keys, None).check()
    sees_all = _intervals.contains(seen, np.arange(queries) + offsets)
    line = Layout((), 1, keys, None)
    columns = wrapped(_cells.only_whole(seen, line), line)
    mask: Ranges | Blocks
    if len(seen.first) > _MOST_RANGES:
        mask = _rows_in_blocks(sees_all, keys) | columns
    else:
        mask = Ranges(0, np.where(sees_all, keys, 0), kv_len=keys) | columns
    return mask


def _rows_in_blocks(sees_all: Bools, kv_len: int) -> SparseMask:
    """Return a mask in which some queries see all keys. The blocks of a block row are equal."""
    height, width = DEFAULT_BLOCK
    layout = Layout(sees_all.shape[:-1], sees_all.shape[-1], kv_len, DEFAULT_BLOCK)
    layout.check()
    by_row = np.zeros((*layout.planes, layout.rows * height), bool)
    by_row[..., : layout.q_len] = sees_all
    by_row = by_row.reshape(layout.all_rows, height)
    row = np.nonzero(by_row.any(axis=1))[0]
    layout.check(len(row) * layout.columns)
    patterns, number = np.unique(by_row[row], axis=0, return_inverse=True)
    bits = np.repeat(np.where(patterns[:, :, None], np.uint8(255), np.uint8(0)), width // 8, axis=2)
    place = row[:, None] * layout.step + np.arange(0, kv_len, width)
    number = np.repeat(number, layout.columns)
    cells = _cells.Cells(NOTHING, place.ravel(), number, bits)
    return wrapped(_cells.trimmed(cells, layout), layout)


def _intervals_of(tokens: ArrayLike, kv_len: int) -> Intervals:
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
    return _intervals.union(first, last)
