"""Build sparse masks from functions of positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count
from regard.masks import _intervals
from regard.masks._blocks import DEFAULT_BLOCK, Blocks, block_of
from regard.masks._combine import wrapped
from regard.masks._grid import evaluated
from regard.masks._rows import Layout
from regard.masks._symbols import Span, Truth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Region = tuple[int, int, int, int]  # block rows and block columns: first, end, first, end


@refuses_unknown
def from_function(
    f: Callable[[Any, Any], Any],
    q_len: SupportsIndex,
    kv_len: SupportsIndex | None = None,
    *,
    block: Sequence[SupportsIndex] = DEFAULT_BLOCK,
) -> Blocks:
    """Build a sparse mask from a function of the query's and the key's index.

    Parameters
    ----------
    f : callable
        ``f(query, key)`` returns whether the query sees the key, as NumPy functions do: for integer
        arrays of shape ``(rows, 1)`` and ``(1, columns)``, it returns a bool array that broadcasts
        to ``(rows, columns)``.
    q_len : int
        Number of queries.
    kv_len : int, optional
        Number of keys; `q_len` when not given.
    block : pair of int, default (128, 128)
        The queries and keys of a block.

    Returns
    -------
    Blocks
        The shape is ``(q_len, kv_len)``.

    Raises
    ------
    TypeError
        If `f` is not callable or does not return bools, or a length is not an integer.
    ValueError
        If a length is negative, `block` is not a pair of positive integers, or the result of `f`
        does not broadcast to the shape of its arguments.

    Notes
    -----
    `f` is first called with objects that represent all indices of a region. They support integer
    arithmetic, comparisons, ``&``, ``|``, ``^``, ``~``, and the NumPy functions that do the same,
    such as `numpy.abs`, `numpy.minimum` and `numpy.logical_and`. If the result is the same for the
    whole region, no element is computed. Otherwise, the region is divided. For a mask of a million
    tokens, such a function is called some 100,000 times.

    If `f` does not support these objects, for example because it indexes an array, it is called
    with arrays for every block. This takes time in proportion to ``q_len * kv_len``, but memory for
    at most one block row.

    Examples
    --------
    >>> import regard
    >>> regard.masks.from_function(lambda i, j: abs(i - j) < 2, 4).to_dense().astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 1, 0],
           [0, 1, 1, 1],
           [0, 0, 1, 1]])

    A causal window with four first keys:

    >>> regard.masks.from_function(lambda i, j: (j <= i) & ((i - j < 300) | (j < 4)), 10_000)
    Blocks(shape=(10000, 10000), 2.994% visible, 79 whole and 306 partial blocks of 128 x 128, \
28.3 kB)

    Documents, by an array:

    >>> import numpy as np
    >>> document = np.array([0, 0, 1, 1, 1])
    >>> mask = regard.masks.from_function(lambda i, j: document[i] == document[j], 5)
    >>> mask.nnz
    13
    """
    if not callable(f):
        raise TypeError(f"f must be callable, got {type(f).__name__}")
    queries = count("q_len", q_len)
    keys = queries if kv_len is None else count("kv_len", kv_len)
    layout = Layout((), queries, keys, block_of(block))
    layout.check()

    def visible_to(_: int, rows: slice, columns: slice) -> Bools:
        return _called(f, rows, columns)

    if _answer(f, layout, (0, layout.rows, 0, _columns(layout))) is None:
        mask = wrapped(evaluated(layout, visible_to), layout)
    else:
        whole, parts = _divided(f, layout)
        cells = evaluated(layout, visible_to, parts)
        whole = _intervals.union(
            np.concatenate([whole.first, cells.whole.first]),
            np.concatenate([whole.last, cells.whole.last]),
        )
        mask = wrapped(cells._replace(whole=whole), layout)
    assert isinstance(mask, Blocks)
    return mask


def _columns(layout: Layout) -> int:
    assert layout.block is not None
    return -(-layout.kv_len // layout.block[1])


def _called(f: Callable[[Any, Any], Any], rows: slice, columns: slice) -> Bools:
    """Call the function with arrays, and check its result."""
    query = np.arange(rows.start, rows.stop)[:, None]
    key = np.arange(columns.start, columns.stop)[None, :]
    try:
        result = np.asarray(f(query, key))
    except ValueError as error:
        if "truth value" not in str(error):
            raise
        raise ValueError(
            "f must not use and, or, not, or a chained comparison such as 0 < i < j, which arrays "
            "do not have: write &, |, ~, and parentheses around comparisons"
        ) from error
    if result.dtype != np.bool_:
        raise TypeError(f"f must return bools (True = may attend), got {result.dtype}")
    shape = (query.size, key.size)
    try:
        return np.broadcast_to(result, shape)
    except ValueError:
        raise ValueError(
            f"f must return an array that broadcasts to {shape} for indices of shape "
            f"{query.shape} and {key.shape}, got shape {result.shape}"
        ) from None


def _answer(f: Callable[[Any, Any], Any], layout: Layout, region: Region) -> bool | str | None:
    """Return the function's result in a region: one bool, "unknown", or None.

    None means that the function does not support symbols.
    """
    assert layout.block is not None
    height, width = layout.block
    rows = region[0] * height, min(region[1] * height, layout.q_len)
    keys = region[2] * width, min(region[3] * width, layout.kv_len)
    if rows[0] == rows[1] or keys[0] == keys[1]:
        return False
    try:
        truth = Truth.of(f(Span(rows[0], rows[1] - 1), Span(keys[0], keys[1] - 1)))
    except Exception:  # a user's function may fail in any way
        return None
    if truth.can_be_true and truth.can_be_false:
        return "unknown"
    return truth.can_be_true


def _divided(
    f: Callable[[Any, Any], Any], layout: Layout
) -> tuple[_intervals.Intervals, Iterator[tuple[int, int, int]]]:
    """Return the blocks that are True, and the parts of block rows that are unknown."""
    whole: list[Region] = []
    unknown: list[tuple[int, int]] = []
    regions = [(0, layout.rows, 0, _columns(layout))]
    while regions:
        region = regions.pop()
        answer = _answer(f, layout, region)
        if answer is True:
            whole.append(region)
        elif answer is not False:
            parts = _quarters(region)
            if len(parts) == 1:
                unknown.append((region[0], region[2]))
            else:
                regions.extend(parts)
    return _whole_blocks(whole, layout), _joined(sorted(unknown), layout)


def _quarters(region: Region) -> list[Region]:
    """Divide a region on each axis that has more than one block."""
    first_row, last_row, first_column, last_column = region
    row, column = (first_row + last_row) // 2, (first_column + last_column) // 2
    rows = [(first_row, row), (row, last_row)] if row > first_row else [(first_row, last_row)]
    columns = [(first_column, column), (column, last_column)]
    if column == first_column:
        columns = [(first_column, last_column)]
    return [(*each, *other) for each in rows for other in columns]


def _whole_blocks(regions: list[Region], layout: Layout) -> _intervals.Intervals:
    assert layout.block is not None
    width = layout.block[1]
    first_row, last_row, first, last = np.array(regions, np.int64).reshape(-1, 4).T
    row = _intervals.counted(first_row, last_row - first_row) * layout.step
    first = np.repeat(first * width, last_row - first_row)
    last = np.repeat(np.minimum(last * width, layout.kv_len), last_row - first_row)
    return _intervals.union(row + first, row + last)


def _joined(blocks: list[tuple[int, int]], layout: Layout) -> Iterator[tuple[int, int, int]]:
    """Return neighboring blocks of a block row as one part: block row, first key, end."""
    assert layout.block is not None
    width = layout.block[1]
    begin = 0
    for i, (row, column) in enumerate(blocks):
        if blocks[i + 1 : i + 2] != [(row, column + 1)]:
            yield row, blocks[begin][1] * width, min((column + 1) * width, layout.kv_len)
            begin = i + 1
