"""Build masks of blocks: from a function of positions, from lists of blocks, and at random."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.random import Generator, default_rng

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, flag
from regard.masks import _cells, _grid, _intervals
from regard.masks._blocks import Blocks, block_of
from regard.masks._intervals import NOTHING, Intervals
from regard.masks._positions import sizes
from regard.masks._rows import Layout
from regard.masks._sparse import DEFAULT_BLOCK, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from regard._arguments.arrays import Bools, Integers

    Listed = tuple[Integers, Integers, Integers]


@refuses_unknown
def from_function(
    f: Callable[[Any, Any], Any],
    q_len: SupportsIndex,
    kv_len: SupportsIndex | None = None,
    *,
    block: Sequence[SupportsIndex] = DEFAULT_BLOCK,
    by_corners: bool = False,
) -> Blocks:
    """Build a sparse mask from a function of the query's and the key's index.

    Parameters
    ----------
    f : callable
        ``f(query, key)`` returns whether the query sees the key, as NumPy functions do: for integer
        arrays of shape ``(rows, 1)`` and ``(1, columns)``, it returns a bool array that broadcasts
        to ``(rows, columns)``.
    q_len, kv_len : int
        Number of queries and of keys. `kv_len` is `q_len` when not given.
    block : pair of int, default (128, 128)
        The queries and keys of a block.
    by_corners : bool, default False
        Assume that all pairs of a block have one result if its four corners do, and call `f` for
        all pairs of the other blocks only. See the notes.

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
    By default, `f` is called for every pair of a query and a key, in parts of one row of blocks.
    This takes time in proportion to ``q_len * kv_len``, about a second for 20,000 tokens, but
    little memory.

    With `by_corners`, a mask of a million tokens takes some ten seconds. It is right if the visible
    and the hidden regions are wider than a block, as in windows, chunks and long documents, and
    wrong if a rule changes twice between two corners, as dilation and single global tokens do.
    Combine such a rule by ``&`` and ``|`` with the masks of other functions, whose time is
    proportional to their ranges and blocks.

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
    queries, keys = sizes(q_len, kv_len)
    corners_suffice = flag("by_corners", by_corners)
    layout = Layout((), queries, keys, block_of(block))
    layout.check()

    def visible_to(_: int, rows: slice, columns: slice) -> Bools:
        return _called(f, np.arange(rows.start, rows.stop), np.arange(columns.start, columns.stop))

    cells = _by_corners(f, layout) if corners_suffice else _grid.evaluated(layout, visible_to)
    return wrapped(cells, layout)  # type: ignore[return-value]


def _by_corners(f: Callable[[Any, Any], Any], layout: Layout) -> _cells.Cells:
    """Call a function for the corners of all blocks, and for the blocks whose corners differ."""
    assert layout.block is not None
    height, width = layout.block
    first = np.arange(0, layout.kv_len, width)
    keys = np.stack([first, np.minimum(first + width, layout.kv_len) - 1], axis=1).ravel()
    begins, ends, mixed = ([NOTHING.first] for _ in range(3))
    for row in range(layout.rows):
        queries = np.array([row * height, min((row + 1) * height, layout.q_len) - 1])
        visible = _called(f, queries, keys).reshape(2, layout.columns, 2)
        is_whole = np.asarray(visible.all(axis=(0, 2)))
        sees_any = visible.any(axis=(0, 2))
        line = row * layout.step
        _, begin, end = _intervals.runs(is_whole[None])
        begins.append(line + begin * width)
        ends.append(line + np.minimum(end * width, layout.kv_len))
        mixed.append(line + first[sees_any & ~is_whole])

    def visible_at(_: Integers, queries: Integers, keys: Integers) -> Bools:
        visible = np.zeros((len(queries), height, width), bool)
        for own, query, key in zip(visible, queries, keys, strict=True):
            rows = np.arange(query, min(query + height, layout.q_len))
            columns = np.arange(key, min(key + width, layout.kv_len))
            own[: len(rows), : len(columns)] = _called(f, rows, columns)
        return visible

    whole = Intervals(np.concatenate(begins), np.concatenate(ends))
    return _grid.classified(whole, np.concatenate(mixed), layout, visible_at)


def _called(f: Callable[[Any, Any], Any], queries: Integers, keys: Integers) -> Bools:
    """Call the function with the indices of some queries and keys, and check its result."""
    query, key = queries[:, None], keys[None, :]
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


@refuses_unknown
def random_blocks(
    q_len: SupportsIndex,
    kv_len: SupportsIndex | None = None,
    *,
    blocks_per_row: SupportsIndex,
    heads: SupportsIndex | None = None,
    block: Sequence[SupportsIndex] = DEFAULT_BLOCK,
    rng: Generator | SupportsIndex | None = None,
) -> Blocks:
    """Let each block of queries attend to some random blocks of keys.

    Parameters
    ----------
    q_len, kv_len : int
        Number of queries and of keys. `kv_len` is `q_len` when not given.
    blocks_per_row : int
        The number of different blocks of keys for each block of queries.
    heads : int, optional
        Number of heads, each of which has its own blocks. By default, the mask has no heads axis.
    block : pair of int, default (128, 128)
        The queries and keys of a block.
    rng : numpy.random.Generator or int, optional
        The random generator or its seed. By default, every call returns a different mask.

    Returns
    -------
    Blocks
        The shape is ``(q_len, kv_len)``, or ``(heads, q_len, kv_len)`` with `heads`.

    Raises
    ------
    TypeError
        If a number is not an integer, or `rng` has the wrong type.
    ValueError
        If a number is negative, or `blocks_per_row` exceeds the number of blocks of keys.

    Examples
    --------
    The mask of BigBird, in which the first and the last block are global:

    >>> import numpy as np
    >>> import regard
    >>> n, size = 4096, 64
    >>> ends = np.r_[0:size, n - size : n]
    >>> bigbird = (
    ...     regard.masks.random_blocks(n, blocks_per_row=3, block=(size, size), rng=0)
    ...     | regard.masks.sliding(n, window=(size, size))
    ...     | regard.masks.global_tokens(ends, n)
    ... )
    >>> bigbird.shape, bigbird.block
    ((4096, 4096), (64, 64))
    """
    queries, keys = sizes(q_len, kv_len)
    size = block_of(block)
    planes = () if heads is None else (count("heads", heads),)
    layout = Layout(planes, queries, keys, size)
    per_row = count("blocks_per_row", blocks_per_row, 0, layout.columns)
    generator = _generator(rng)
    layout.check(layout.all_rows * per_row)
    drawn = [
        np.sort(generator.choice(layout.columns, per_row, replace=False, shuffle=False))
        for _ in range(layout.all_rows)
    ]
    indices = np.array(drawn, np.int64).ravel()
    plane = np.arange(math.prod(planes)).reshape(*planes, 1)
    indptr = (plane * layout.rows + np.arange(layout.rows + 1)) * per_row
    return Blocks(indptr, indices, shape=(*planes, queries, keys), block=size)


def _generator(rng: Generator | SupportsIndex | None) -> Generator:
    if rng is None or isinstance(rng, Generator):
        return default_rng(rng)
    if not hasattr(rng, "__index__"):
        raise TypeError(
            f"rng must be a numpy.random.Generator, an int or None, got {type(rng).__name__}"
        )
    return default_rng(count("rng", rng))


def from_lists(
    shape: tuple[int, ...],
    block: tuple[int, int],
    whole: Listed,
    partial: Listed,
    visible_at: Callable[[Integers, Integers, Integers], Bools],
) -> Blocks:
    """Return a mask of whole blocks, and of blocks whose visible pairs a function determines.

    `whole` and `partial` are the plane, the block row and the block column of each block, in any
    order. Blocks outside the mask are left out, and a block in both lists is whole. `visible_at` is
    called with the planes, the first queries and the first keys of n blocks. It returns which keys
    the queries see, shape ``(n, *block)``. Elements outside the mask are not used.
    """
    layout = Layout.of(shape, block)
    layout.check()
    q_len, kv_len = layout.q_len, layout.kv_len

    def inside(plane: Integers, query: Integers, key: Integers) -> Bools:
        rows = query[:, None] + np.arange(block[0]) < q_len
        keys = key[:, None] + np.arange(block[1]) < kv_len
        visible: Bools = visible_at(plane, query, key) & rows[:, :, None] & keys[:, None, :]
        return visible

    full = _places(whole, layout)
    others = np.setdiff1d(_places(partial, layout), full)
    cells = _grid.classified(_cells.blocks_at(full, layout), others, layout, inside)
    return wrapped(cells, layout)  # type: ignore[return-value]


def _places(listed: Listed, layout: Layout) -> Integers:
    """Return the first keys of the blocks on the line of the layout, sorted and distinct."""
    assert layout.block is not None
    plane, row, column = listed
    key = column * layout.block[1]
    keep = (row < layout.rows) & (key < layout.kv_len)
    return np.unique(((plane * layout.rows + row) * layout.step + key)[keep])
