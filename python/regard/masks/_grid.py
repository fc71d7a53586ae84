"""Align sparse masks with each other: the same rows, blocks, queries, keys and planes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.numbers import repeat
from regard.masks import _cells, _intervals
from regard.masks._cells import Cells
from regard.masks._intervals import NOTHING, Intervals
from regard.masks._rows import (
    MOST_PAIRS,
    Layout,
    Reader,
    Spans,
    SparseRows,
    check_axes,
    distinct,
    spans_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from regard._arguments.arrays import Bools, Bytes, Integers


class BitStore:
    """Distinct blocks of bits: equal blocks have one number."""

    __slots__ = ("_blocks", "_numbers", "_shape")

    def __init__(self, block: tuple[int, int]) -> None:
        self._shape = (block[0], -(-block[1] // 8))
        self._blocks: list[Bytes] = []
        self._numbers: dict[bytes, int] = {}

    def add(self, bits: Bytes) -> Integers:
        """Return the numbers of some blocks."""
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


class _Classified:
    """Blocks that are added in order, and of which the whole and the partial ones are kept."""

    def __init__(self, layout: Layout) -> None:
        assert layout.block is not None
        self._layout, self._store = layout, BitStore(layout.block)
        self._pairs = np.bitwise_count(_cells.extents(layout)).sum(axis=(1, 2), dtype=np.int64)
        self._whole, self._place, self._number = ([NOTHING.first] for _ in range(3))

    def add(self, place: Integers, visible: Bools) -> None:
        """Add blocks by their first keys and visible pairs, which are False outside the mask."""
        bits = np.packbits(visible, axis=-1, bitorder="little")
        shown = np.bitwise_count(bits).sum(axis=(1, 2), dtype=np.int64)
        is_whole = shown == self._pairs[_cells.edge_kinds(place, self._layout)]
        is_partial = (shown > 0) & ~is_whole
        self._whole.append(place[is_whole])
        self._place.append(place[is_partial])
        self._number.append(self._store.add(bits[is_partial]))

    def cells(self) -> Cells:
        """Return the mask."""
        whole, place, number = map(np.concatenate, (self._whole, self._place, self._number))
        return Cells(_cells.blocks_at(whole, self._layout), place, number, self._store.bits)


def classified(
    whole: Intervals,
    place: Integers,
    layout: Layout,
    visible_at: Callable[[Integers, Integers, Integers], Bools],
) -> Cells:
    """Return a mask of whole blocks, and of blocks each of which is whole, partial or hidden.

    `place` contains the first keys of the latter, sorted. `visible_at` is called with the planes,
    the first queries and the first keys of n blocks, and returns which keys the queries see, shape
    ``(n, *block)``, False outside the mask.
    """
    assert layout.block is not None
    height, width = layout.block
    row, key = place // layout.step, place % layout.step
    plane, query = row // max(layout.rows, 1), row % max(layout.rows, 1) * height
    found = _Classified(layout)
    at_once = max(MOST_PAIRS // (height * width), 1)
    for begin in range(0, len(place), at_once):
        part = slice(begin, begin + at_once)
        found.add(place[part], visible_at(plane[part], query[part], key[part]))
    cells = found.cells()
    return cells._replace(whole=_intervals.combined(np.logical_or, whole, cells.whole))


def evaluated(layout: Layout, visible_to: Callable[[int, slice, slice], Bools]) -> Cells:
    """Return a mask of blocks from a function of a plane, some queries and some keys.

    The function returns which of the keys the queries see. It is called for parts of block rows.
    """
    assert layout.block is not None
    height, width = layout.block
    found = _Classified(layout)
    at_once = max(MOST_PAIRS // (height * width), 1) * width
    for row in range(layout.all_rows):
        plane, query = row // layout.rows, row % layout.rows * height
        queries = slice(query, min(query + height, layout.q_len))
        for begin in range(0, layout.kv_len, at_once):
            keys = slice(begin, min(begin + at_once, layout.kv_len))
            key = np.arange(begin, keys.stop, width)
            padded = np.zeros((height, len(key) * width), bool)
            padded[: queries.stop - query, : keys.stop - begin] = visible_to(plane, queries, keys)
            visible = padded.reshape(height, len(key), width).swapaxes(0, 1)
            found.add(row * layout.step + key, visible)
    return found.cells()


def rows_of_dense(mask: Bools, block: tuple[int, int]) -> SparseRows:
    """Return the arrays of a dense mask in blocks."""
    check_axes("mask", mask.shape)
    once = distinct(mask, 2)
    layout = Layout.of(once.shape, block)
    layout.check()

    def visible_to(plane: int, queries: slice, keys: slice) -> Bools:
        place: Any = np.unravel_index(plane, layout.planes)
        part: Bools = once[(*place, queries, keys)]
        return part

    rows = _cells.rows_of(evaluated(layout, visible_to), layout)
    return rows.spread(mask.shape[:-2])


def rows_of_ranges(first: Integers, last: Integers, kv_len: int) -> SparseRows:
    """Return the arrays of a mask in which each query sees the keys from `first` to before `last`.

    Both broadcast to the planes and queries.
    """
    shape = np.broadcast_shapes(first.shape, last.shape) or (1,)
    layout = Layout(shape[:-1], shape[-1], kv_len, None)
    layout.check()
    first, last = (
        np.broadcast_to(np.clip(each, 0, kv_len), shape).ravel() for each in (first, last)
    )
    row = np.nonzero(first < last)[0]
    start = row * layout.step
    whole = Intervals(start + first[row], start + last[row])
    return _cells.rows_of(_cells.only_whole(whole, layout), layout)


def cells_on(rows: SparseRows, block: tuple[int, int] | None, layout: Layout) -> Cells:
    """Return a mask on a layout, to which it broadcasts. Missing keys are hidden.

    `block` is the size of the mask's blocks, or None for a mask without blocks, which a layout
    without blocks needs.
    """
    rows = rows.distinct()
    if layout.block and not (block == layout.block and _is_aligned(rows, layout)):
        q_len, planes = rows.shape[-2], rows.shape[:-2]
        # If all rows are equal, compute one, in which a block has all its queries.
        height = layout.block[0] if q_len < layout.q_len else layout.q_len
        own = layout._replace(planes=planes, q_len=height)
        cells = _regridded(rows, own)
        if own == layout:
            return cells
        rows = _cells.arrays_of(cells, own)
    begin, end = rows.row_range()
    counts = rows.starts[..., begin + 1 : end + 1] - rows.starts[..., begin:end]
    layout.check(layout.all_rows // max(counts.size, 1) * int(counts.sum()))
    spans = spans_of(rows, (*layout.planes, layout.rows))
    first, last = spans.row * layout.step + spans.first, spans.row * layout.step + spans.last
    partial = spans.number >= 0
    if not partial.any():
        return _cells.only_whole(Intervals(first, last), layout)
    whole = Intervals(first[~partial], last[~partial])
    cells = Cells(whole, first[partial], spans.number[partial], rows.bits)
    return _cells.trimmed(cells, layout) if _cells.edge_kinds(cells.place, layout).any() else cells


def _is_aligned(rows: SparseRows, layout: Layout) -> bool:
    """Return whether a mask and a layout have the same blocks, given blocks of the same size."""
    assert layout.block is not None
    height, width = layout.block
    return (
        rows.shape[-2] == layout.q_len
        and rows.row_queries == height
        and rows.first_query % height == 0
        and rows.first_key % width == 0
        and (rows.shape[-1] == layout.kv_len or rows.shape[-1] % width == 0)
    )


def _regridded(rows: SparseRows, layout: Layout) -> Cells:
    """Return a mask with the blocks of a layout, from a mask with other blocks or no blocks."""
    layout.check(rows.starts.size)
    whole, touched = _found(rows, layout)
    assert layout.block is not None
    size, reader = layout.block, Reader(rows)

    def visible_at(plane: Integers, query: Integers, key: Integers) -> Bools:
        return reader.read(plane, query, key, size, layout.q_len)

    first, last = _intervals.difference(touched, whole)
    count = -(-(last - first) // size[1])
    layout.check(int(count.sum()))
    place = repeat(first, count) + _intervals.counted(np.zeros_like(count), count) * size[1]
    return classified(whole, place, layout, visible_at)


def _found(rows: SparseRows, layout: Layout) -> tuple[Intervals, Intervals]:
    """Return the blocks that all queries of a row see by whole spans, and the blocks that any sees.

    The intervals begin and end at blocks.
    """
    spans, queries = _spans_of_block_rows(rows, layout)
    start = spans.row * layout.step
    first, last = start + spans.first, start + spans.last
    touched = _intervals.union(first, last)
    touched = _intervals.union(
        _edges_before(touched.first, layout), _edges_after(touched.last, layout)
    )
    is_whole = spans.number < 0
    points, depth = _intervals.depths(first[is_whole], last[is_whole], queries[is_whole])
    whole = _intervals.chosen(points, depth == layout.queries_of(points // layout.step))
    first, last = _edges_after(whole.first, layout), _edges_before(whole.last, layout)
    return Intervals(first[first < last], last[first < last]), touched


def _spans_of_block_rows(rows: SparseRows, layout: Layout) -> tuple[Spans, Integers]:
    """Return the spans of a mask by the rows of a layout, and the number of queries of each.

    A span is repeated if its row belongs to several rows of blocks.
    """
    begin, end = rows.row_range()
    spans = spans_of(rows)
    plane, row = spans.row // max(end - begin, 1), spans.row % max(end - begin, 1) + begin
    if rows.shape[-2] == 1:  # it may broadcast
        low, high = np.zeros_like(row), np.full_like(row, layout.q_len)
    else:
        low = np.maximum(row * rows.row_queries - rows.first_query, 0)
        high = np.minimum((row + 1) * rows.row_queries - rows.first_query, layout.q_len)
    height = layout.row_queries
    block_rows = (high - 1) // height - low // height + 1
    block_row = _intervals.counted(low // height, block_rows)
    at = repeat(np.arange(len(row)), block_rows)
    queries = np.minimum(high[at], (block_row + 1) * height) - np.maximum(
        low[at], block_row * height
    )
    repeated = Spans(*(each[at] for each in spans))
    return repeated._replace(row=plane[at] * layout.rows + block_row), queries


def _edges_before(place: Integers, layout: Layout) -> Integers:
    """Return the last edge of a block at or before some places; the last key's end is an edge."""
    assert layout.block is not None
    key = place % layout.step
    return np.where(key == layout.kv_len, place, place - key % layout.block[1])


def _edges_after(place: Integers, layout: Layout) -> Integers:
    """Return the first edge of a block at or after some places."""
    assert layout.block is not None
    key, width = place % layout.step, layout.block[1]
    after: Integers = place - key + np.minimum(-(-key // width) * width, layout.kv_len)
    return after
