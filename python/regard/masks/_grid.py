"""Align sparse masks with each other: the same rows, blocks, queries, keys and planes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.masks import _cells, _intervals
from regard.masks._cells import Cells
from regard.masks._intervals import Intervals
from regard.masks._rows import MOST_PAIRS, Layout, Reader, SparseRows, check_axes, spans_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Bytes = NDArray[np.uint8]


class BitStore:
    """Distinct blocks of bits: equal blocks have one number."""

    __slots__ = ("_blocks", "_numbers", "_shape")

    def __init__(self, block: tuple[int, int]) -> None:
        self._shape = (block[0], -(-block[1] // 8))
        self._blocks: list[Bytes] = []
        self._numbers: dict[bytes, int] = {}

    def add(self, visible: Bools) -> Integers:
        """Return the numbers of some blocks, shape ``(n, *block)``."""
        bits = np.packbits(visible, axis=-1, bitorder="little")
        numbers = np.empty(len(bits), np.int64)
        for i, each in enumerate(bits):
            number = self._numbers.setdefault(each.tobytes(), len(self._blocks))
            if number == len(self._blocks):
                self._blocks.append(each.copy())
            numbers[i] = number
        return numbers

    @property
    def bits(self) -> Bytes:
        """The blocks by number."""
        return np.array(self._blocks, np.uint8).reshape(-1, *self._shape)


def cells_on(rows: SparseRows, block: tuple[int, int] | None, layout: Layout) -> Cells:
    """Return a mask on a layout, to which it broadcasts. Missing keys are hidden.

    `block` is the size of the mask's blocks, or None for a mask without blocks, which a layout
    without blocks needs.
    """
    given = rows.distinct()
    copies = math.prod(layout.planes) // max(math.prod(given.planes), 1)
    layout.check(copies * int((given.starts[..., -1] - given.starts[..., 0]).sum()))
    q_len = given.shape[-2]
    own = Layout(given.planes, q_len, layout.kv_len, layout.block)
    if q_len == layout.q_len or (q_len == 1 and layout.block is None):
        is_aligned = layout.block is None or (block == layout.block and _is_aligned(given, own))
        cells = _aligned(given, own) if is_aligned else _regridded(given, own)
    else:
        # All rows are equal: compute one, in which a block has all its queries.
        assert layout.block is not None
        own = own._replace(q_len=layout.block[0])
        cells = _regridded(given, own)
    if own.q_len != layout.q_len:
        planes = np.arange(math.prod(own.planes))
        cells = _cells.repeated(cells, own.step, np.repeat(planes, layout.rows))
        own = own._replace(q_len=layout.q_len)
        cells = _cells.trimmed(cells, own)
    if own.planes != layout.planes:
        index = np.arange(math.prod(own.planes)).reshape(own.planes)
        index = np.broadcast_to(index, layout.planes).ravel()
        cells = _cells.repeated(cells, own.rows * own.step, index)
    return cells


def _is_aligned(rows: SparseRows, layout: Layout) -> bool:
    """Return whether a mask and a layout have the same blocks, given blocks of the same size."""
    assert layout.block is not None
    height, width = layout.block
    return (
        rows.row_queries == height
        and rows.first_query % height == 0
        and rows.first_key % width == 0
        and (rows.shape[-1] == layout.kv_len or rows.shape[-1] % width == 0)
    )


def _aligned(rows: SparseRows, layout: Layout) -> Cells:
    """Return a mask that has the same rows and blocks as the layout."""
    begin = rows.first_query // rows.row_queries
    spans = spans_of(rows, begin, begin + layout.rows)
    first = spans.row * layout.step + spans.first
    partial = spans.number >= 0
    if not partial.any():
        last = spans.row * layout.step + spans.last
        return _cells.only_whole(Intervals(first, last), layout)
    last = spans.row[~partial] * layout.step + spans.last[~partial]
    cells = Cells(
        Intervals(first[~partial], last), first[partial], spans.number[partial], rows.bits
    )
    return _cells.trimmed(cells, layout)


def _regridded(rows: SparseRows, layout: Layout) -> Cells:
    """Return a mask with the blocks of a layout, from a mask with other blocks or no blocks."""
    whole, touched = _found(rows, layout)
    assert layout.block is not None
    size, reader = layout.block, Reader(rows)

    def visible_at(plane: Integers, query: Integers, key: Integers) -> Bools:
        return reader.read(plane, query, key, size, layout.q_len)

    partial = _difference(touched, whole, layout)
    layout.check(int((-(-(partial.last - partial.first) // layout.block[1])).sum()))
    place = _first_keys(partial, layout)
    cells = classified(place, layout, visible_at)
    return cells._replace(whole=joined(whole, cells.whole))


def classified(
    place: Integers,
    layout: Layout,
    visible_at: Callable[[Integers, Integers, Integers], Bools],
) -> Cells:
    """Return the cells of some blocks, each of which is whole, partial or hidden.

    `place` contains the first keys of the blocks, sorted. `visible_at` is called with the planes,
    the first queries and the first keys of n blocks, and returns which keys the queries see, shape
    ``(n, *block)``, False outside the mask.
    """
    assert layout.block is not None
    height, width = layout.block
    row, key = place // layout.step, place % layout.step
    plane, query = row // max(layout.rows, 1), row % max(layout.rows, 1) * height
    sees_all = np.zeros(len(place), bool)
    number = np.full(len(place), -1)
    store = BitStore(layout.block)
    at_once = max(MOST_PAIRS // (height * width), 1)
    for begin in range(0, len(place), at_once):
        part = slice(begin, begin + at_once)
        visible = visible_at(plane[part], query[part], key[part])
        shown = visible.sum(axis=(1, 2))
        queries = np.minimum(layout.q_len - query[part], height)
        sees_all[part] = shown == queries * np.minimum(layout.kv_len - key[part], width)
        is_partial = (shown > 0) & ~sees_all[part]
        number[part][is_partial] = store.add(visible[is_partial])
    keep = number >= 0
    return Cells(blocks_at(place[sees_all], layout), place[keep], number[keep], store.bits)


def joined(a: Intervals, b: Intervals) -> Intervals:
    """Return the union of two sets of intervals."""
    return _intervals.union(np.concatenate([a.first, b.first]), np.concatenate([a.last, b.last]))


def _found(rows: SparseRows, layout: Layout) -> tuple[Intervals, Intervals]:
    """Return the blocks that all queries of a row see by whole spans, and the blocks that any sees.

    The intervals begin and end at blocks.
    """
    assert layout.block is not None
    height, width = layout.block
    last_query = rows.shape[-2] - 1
    begin, end = rows.row_range()
    spans = spans_of(rows, begin, end)
    row_count = max(end - begin, 1)
    plane, row = spans.row // row_count, spans.row % row_count + begin
    if last_query == 0:  # it may broadcast
        low, high = np.zeros_like(row), np.full_like(row, layout.q_len)
    else:
        low = np.maximum(row * rows.row_queries - rows.first_query, 0)
        high = np.minimum((row + 1) * rows.row_queries - rows.first_query, layout.q_len)
    # A row of the mask may belong to several rows of blocks.
    block_rows = (high - 1) // height - low // height + 1
    block_row = _intervals.counted(low // height, block_rows)
    at = np.repeat(np.arange(len(row)), block_rows)
    low = np.maximum(low[at], block_row * height)
    weight = np.minimum(high[at], (block_row + 1) * height) - low
    start = (plane[at] * layout.rows + block_row) * layout.step
    first, last = start + spans.first[at], start + spans.last[at]
    points, depth = _intervals.depths(first, last)
    touched = _outward(_intervals.chosen(points, depth > 0), layout)
    is_whole = spans.number[at] < 0
    points, depth = _intervals.depths(first[is_whole], last[is_whole], weight[is_whole])
    block_row = points // layout.step % max(layout.rows, 1)
    everyone = np.minimum(layout.q_len - block_row * height, height)
    whole = _intervals.chosen(points, depth == everyone)
    start = whole.first // layout.step * layout.step
    first = start + -(-(whole.first - start) // width) * width
    last = whole.last - start
    last = start + np.where(last == layout.kv_len, last, last // width * width)
    return Intervals(first[first < last], last[first < last]), touched


def _outward(a: Intervals, layout: Layout) -> Intervals:
    """Return the blocks that intervals touch."""
    assert layout.block is not None
    width = layout.block[1]
    start = a.first // layout.step * layout.step
    first = start + (a.first - start) // width * width
    last = start + np.minimum(-(-(a.last - start) // width) * width, layout.kv_len)
    return _intervals.union(first, last)


def _difference(a: Intervals, b: Intervals, layout: Layout) -> Intervals:
    hidden = _intervals.complement(b, _cells.all_keys(layout))
    return _intervals.intersection(a, hidden)


def _first_keys(a: Intervals, layout: Layout) -> Integers:
    """Return the first key of every block in intervals of blocks."""
    assert layout.block is not None
    width = layout.block[1]
    count = -(-(a.last - a.first) // width)
    within = _intervals.counted(np.zeros_like(count), count) * width
    first: Integers = np.repeat(a.first, count) + within
    return first


def evaluated(
    layout: Layout,
    visible_to: Callable[[int, slice, slice], Bools],
    parts: Iterable[tuple[int, int, int]] | None = None,
) -> Cells:
    """Return a mask of blocks from a function of a plane, some queries and some keys.

    The function returns which of the keys the queries see. It is called for parts of block rows.
    `parts` are the block row, the first key and the end of parts that are not hidden, in order.
    """
    assert layout.block is not None
    height, width = layout.block
    store = BitStore(layout.block)
    none = np.zeros(0, np.int64)
    full, place, number = [none], [none], [none]
    at_once = max(MOST_PAIRS // (height * width), 1) * width
    if parts is None:
        parts = ((row, 0, layout.kv_len) for row in range(layout.all_rows))
    for row, first_key, last_key in parts:
        plane, query = row // layout.rows, row % layout.rows * height
        queries = slice(query, min(query + height, layout.q_len))
        for begin in range(first_key, last_key, at_once):
            keys = slice(begin, min(begin + at_once, last_key))
            key = np.arange(begin, keys.stop, width)
            padded = np.zeros((height, len(key) * width), bool)
            padded[: queries.stop - query, : keys.stop - begin] = visible_to(plane, queries, keys)
            visible = padded.reshape(height, len(key), width).swapaxes(0, 1)
            shown = visible.sum(axis=(1, 2))
            is_all = shown == (queries.stop - query) * np.minimum(layout.kv_len - key, width)
            is_partial = (shown > 0) & ~is_all
            full.append(row * layout.step + key[is_all])
            place.append(row * layout.step + key[is_partial])
            number.append(store.add(visible[is_partial]))
    whole = blocks_at(np.concatenate(full), layout)
    return Cells(whole, np.concatenate(place), np.concatenate(number), store.bits)


def blocks_at(place: Integers, layout: Layout) -> Intervals:
    """Return the union of blocks."""
    return _intervals.union(place, _cells.ends(place, layout))


def rows_of_dense(mask: Bools, block: tuple[int, int]) -> SparseRows:
    """Return the arrays of a dense mask in blocks."""
    check_axes("mask", mask.shape)
    strides = zip(mask.shape[:-2], mask.strides[:-2], strict=True)
    once = mask[tuple(slice(1) if size and not stride else slice(None) for size, stride in strides)]
    layout = Layout.of(once.shape, block)
    layout.check()

    def visible_to(plane: int, queries: slice, keys: slice) -> Bools:
        place: Any = np.unravel_index(plane, layout.planes)
        part: Bools = once[(*place, queries, keys)]
        return part

    rows = _cells.rows_of(evaluated(layout, visible_to), layout)
    return rows.spread(mask.shape[:-2])
