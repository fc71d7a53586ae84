"""Build sparse masks of sliding windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, offsets, window_sides
from regard.masks import _cells
from regard.masks._blocks import DEFAULT_BLOCK, Blocks
from regard.masks._cells import Cells
from regard.masks._combine import wrapped
from regard.masks._grid import BitStore
from regard.masks._intervals import Intervals, counted
from regard.masks._per_batch import diagonals
from regard.masks._ranges import Ranges
from regard.masks._rows import Layout

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Integers = NDArray[np.int64]


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
    q_len : int
        Number of queries.
    kv_len : int, optional
        Number of keys; `q_len` when not given.
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
    queries = count("q_len", q_len)
    keys = queries if kv_len is None else count("kv_len", kv_len)
    left, right = window_sides(window)
    distance = count("dilation", dilation, 1)
    low = None if left is None else diagonals(query_offset, -left * distance, queries, keys)
    high = None if right is None else diagonals(query_offset, right * distance, queries, keys)
    own = diagonals(query_offset, 0, queries, keys)  # it gives the shape
    low = np.full_like(own, -queries) if low is None else low
    high = np.full_like(own, keys) if high is None else high
    if own.ndim:
        low, high = low[..., 0], high[..., 0]
    layout = Layout(low.shape[:-1], queries, keys, None if distance == 1 else DEFAULT_BLOCK)
    layout.check(layout.all_rows if distance == 1 else 0)
    if distance == 1:
        row = np.arange(queries)
        return Ranges(row + low, row + high + 1, kv_len=keys)
    residue = offsets(query_offset, keys - queries, any_size=True) % distance
    if queries == 1:
        layout.check(int(np.sum((high - low) // distance)))
    mask = wrapped(_dilated(low, high, np.asarray(residue), distance, layout), layout)
    assert isinstance(mask, Blocks)
    return mask


def _dilated(
    low: Integers, high: Integers, residue: Integers, dilation: int, layout: Layout
) -> Cells:
    """Return the keys with ``low <= j - i <= high`` whose ``j - i`` has the residue.

    There is one number of each for every plane.
    """
    height, width = DEFAULT_BLOCK
    places, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    store = BitStore(DEFAULT_BLOCK)
    columns = -(-layout.kv_len // width)
    bounds = (np.asarray(each, np.int64).ravel() for each in (low, high, residue))
    for plane, (least, most, rest) in enumerate(zip(*bounds, strict=True)):
        least += (rest - least) % dilation
        row, column = _touched(layout, (least, most, dilation), columns)
        places.append((plane * layout.rows + row) * layout.step + column * width)
        distances, which = np.unique(column * width - row * height, return_inverse=True)
        numbers.append(_patterns(store, distances, (least, most, dilation))[which])
    whole = Intervals(places[0], places[0])
    cells = Cells(whole, np.concatenate(places), np.concatenate(numbers), store.bits)
    return _cells.trimmed(cells, layout, inner=True)


def _touched(
    layout: Layout, diagonals: tuple[int, int, int], columns: int
) -> tuple[Integers, Integers]:
    """Return the block rows and block columns of the blocks that diagonals may touch."""
    least, most, dilation = diagonals
    height, width = DEFAULT_BLOCK
    rows = np.arange(layout.rows)
    first = rows * height + least  # the key of the first query on the first diagonal
    if dilation <= width:  # no block between the first and the last diagonal is left out
        begin = np.maximum(first // width, 0)
        end = np.minimum((first + (most - least) + height - 1) // width + 1, columns)
    else:
        begin = np.maximum(-((first + height - 1) // dilation), 0)
        end = np.minimum((layout.kv_len - 1 - first) // dilation, (most - least) // dilation) + 1
    count = np.maximum(end - begin, 0)
    layout.check(int(count.sum()))
    row, number = np.repeat(rows, count), counted(begin, count)
    if dilation <= width:
        return row, number
    # A diagonal touches two blocks of a block row, because blocks are square.
    column = (first[row] + number * dilation) // width
    touched = [
        (row * columns + each)[(each >= 0) & (each < columns)] for each in (column, column + 1)
    ]
    row, column = np.divmod(np.unique(np.concatenate(touched)), max(columns, 1))
    return row, column


def _patterns(store: BitStore, distances: Integers, diagonals: tuple[int, int, int]) -> Integers:
    """Return the numbers of blocks by the distances of their first keys from first queries."""
    least, most, dilation = diagonals
    height, width = DEFAULT_BLOCK
    within = np.arange(width) - np.arange(height)[:, None]
    numbers = [np.zeros(0, np.int64)]
    for begin in range(0, len(distances), 128):
        away = within + distances[begin : begin + 128, None, None]
        visible = (away >= least) & (away <= most) & ((away - least) % dilation == 0)
        numbers.append(store.add(visible))
    return np.concatenate(numbers)
