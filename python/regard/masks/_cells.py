"""Compute with sparse masks whose rows and blocks are aligned."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.ma  # np.unique imports it at its first use

from regard.masks import _intervals
from regard.masks._intervals import Intervals
from regard.masks._rows import ALL_QUERIES, NO_BITS, Layout, SparseRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Bytes = NDArray[np.uint8]


class Cells(NamedTuple):
    """A mask on the line of a `Layout`.

    Attributes
    ----------
    whole : Intervals
        The keys that all queries of their row see.
    place : numpy.ndarray of int64
        The first key of every partial block, sorted.
    number : numpy.ndarray of int64
        The block of `bits` of every partial block.
    bits : numpy.ndarray of uint8
        The bits of partial blocks, which may be shared. Bits outside the mask are 0.
    """

    whole: Intervals
    place: Integers
    number: Integers
    bits: Bytes


def no_bits(layout: Layout) -> Bytes:
    """Return bits of no block."""
    if layout.block is None:
        return NO_BITS
    return np.zeros((0, layout.block[0], -(-layout.block[1] // 8)), np.uint8)


def only_whole(whole: Intervals, layout: Layout) -> Cells:
    """Return cells without partial blocks."""
    none = np.zeros(0, np.int64)
    return Cells(whole, none, none, no_bits(layout))


def all_keys(layout: Layout) -> Intervals:
    """Return the intervals of all keys."""
    if not layout.kv_len:
        return Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))
    first = np.arange(layout.all_rows) * layout.step
    return Intervals(first, first + layout.kv_len)


def rows_of(cells: Cells, layout: Layout) -> SparseRows:
    """Return the arrays of a mask."""
    if layout.q_len == 1 and layout.block:
        return rows_of(_without_blocks(cells, layout), layout._replace(block=None))
    is_used = np.zeros(len(cells.bits), bool)
    is_used[cells.number] = True
    bits, number = cells.bits, cells.number
    if not is_used.all():
        bits, number = bits[is_used], (np.cumsum(is_used) - 1)[number]
    first, last = cells.whole
    row = first // layout.step
    spans = np.empty((len(first) + len(number), 3), np.int64)
    spans[: len(first), 0] = first - row * layout.step
    spans[: len(first), 1] = last - row * layout.step
    spans[: len(first), 2] = -1
    if len(number):
        partial_row = cells.place // layout.step
        key = cells.place - partial_row * layout.step
        spans[len(first) :, 0] = key
        spans[len(first) :, 1] = ends(cells.place, layout) - partial_row * layout.step
        spans[len(first) :, 2] = number
        order = np.argsort(np.concatenate([first, cells.place]), kind="stable")
        spans, row = spans[order], np.concatenate([row, partial_row])[order]
    before = np.zeros(layout.all_rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=layout.all_rows), out=before[1:])
    if math.prod(layout.planes) == 1:
        starts = before
    else:
        plane = np.arange(math.prod(layout.planes))
        starts = before[plane[:, None] * layout.rows + np.arange(layout.rows + 1)]
    return SparseRows(
        starts.reshape(*layout.planes, layout.rows + 1),
        spans,
        bits,
        ALL_QUERIES if layout.q_len == 1 else layout.row_queries,
        0,
        0,
        layout.shape,
    )


def _without_blocks(cells: Cells, layout: Layout) -> Cells:
    """Return the cells of a mask with one query, without blocks."""
    bits = cells.bits[:, 0]
    runs = np.bitwise_count(bits & ~(bits << 1)).sum(axis=-1, dtype=np.int64)  # at most
    layout._replace(block=None).check(len(cells.whole.first) + int(runs[cells.number].sum()))
    shown = np.unpackbits(cells.bits[cells.number, 0], axis=-1, bitorder="little")
    at, first, last = _intervals.runs(shown.view(np.bool_))
    start = cells.place[at]
    whole = _intervals.union(
        np.concatenate([cells.whole.first, start + first]),
        np.concatenate([cells.whole.last, start + last]),
    )
    return only_whole(whole, layout._replace(block=None))


def ends(place: Integers, layout: Layout) -> Integers:
    """Return the ends of partial blocks."""
    width = layout.block[1] if layout.block else 0
    return np.minimum(place + width, place // layout.step * layout.step + layout.kv_len)


def edge_kinds(place: Integers, layout: Layout) -> Integers:
    """Return the kinds of blocks, which are the indices of `extents`.

    The kind is 0 inside the mask, plus 1 for blocks that the last query cuts, and plus 2 for blocks
    that the last key cuts.
    """
    if layout.block is None:
        return np.zeros(len(place), np.int64)
    row = place // layout.step
    is_cut = bool(layout.q_len % layout.block[0])
    in_last_row = is_cut & (row % max(layout.rows, 1) == layout.rows - 1)
    beyond = place - row * layout.step + layout.block[1] > layout.kv_len
    return np.asarray(in_last_row + 2 * beyond, np.int64)


def extents(layout: Layout) -> Bytes:
    """Return the bits inside the mask, of blocks of each kind of `edge_kinds`."""
    if layout.block is None:
        return NO_BITS
    height, width = layout.block
    rows = np.arange(height) < np.array([[height], [layout.q_len % height]])
    keys = np.arange(width) < np.array([[width], [layout.kv_len % width]])
    packed = np.packbits(keys, axis=-1, bitorder="little")
    kind = np.arange(4)
    return rows[kind & 1, :, None] * packed[kind >> 1, None, :]


def trimmed(cells: Cells, layout: Layout, *, inner: bool = False) -> Cells:
    """Return cells whose bits outside the mask are 0, and whose partial blocks are partial.

    Without `inner`, only blocks at the edges are examined.
    """
    kind = edge_kinds(cells.place, layout)
    affected = np.arange(len(kind)) if inner else np.nonzero(kind)[0]
    if not len(affected):
        return cells
    inside = extents(layout)
    pairs, which = np.unique(cells.number[affected] * 4 + kind[affected], return_inverse=True)
    bits = cells.bits[pairs // 4] & inside[pairs % 4]
    is_none = ~bits.any(axis=(1, 2))
    is_all = (bits == inside[pairs % 4]).all(axis=(1, 2))
    number = cells.number.copy()
    number[affected] = len(cells.bits) + which
    keep = np.ones(len(kind), bool)
    keep[affected] = ~(is_none | is_all)[which]
    full = cells.place[affected[is_all[which]]]
    whole = cells.whole
    if len(full):
        whole = _intervals.union(
            np.concatenate([whole.first, full]), np.concatenate([whole.last, ends(full, layout)])
        )
    return Cells(whole, cells.place[keep], number[keep], np.concatenate([cells.bits, bits]))


def intersection(a: Cells, b: Cells) -> Cells:
    """Return the pairs that two masks of one layout both show."""
    whole = _intervals.intersection(a.whole, b.whole)
    a_in_b, b_in_a = (
        _intervals.contains(b.whole, a.place),
        _intervals.contains(a.whole, b.place),
    )
    common, in_a, in_b = np.intersect1d(a.place, b.place, assume_unique=True, return_indices=True)
    pairs, which = np.unique(
        a.number[in_a] * max(len(b.bits), 1) + b.number[in_b], return_inverse=True
    )
    both = a.bits[pairs // max(len(b.bits), 1)] & b.bits[pairs % max(len(b.bits), 1)]
    keep = both.any(axis=(1, 2))[which]
    place = np.concatenate([a.place[a_in_b], b.place[b_in_a], common[keep]])
    number = np.concatenate(
        [
            a.number[a_in_b],
            len(a.bits) + b.number[b_in_a],
            len(a.bits) + len(b.bits) + which[keep],
        ]
    )
    order = np.argsort(place, kind="stable")
    return Cells(whole, place[order], number[order], np.concatenate([a.bits, b.bits, both]))


def complement(a: Cells, layout: Layout) -> Cells:
    """Return the pairs that a mask hides."""
    seen = a.whole
    if len(a.place):
        seen = _intervals.union(
            np.concatenate([seen.first, a.place]),
            np.concatenate([seen.last, ends(a.place, layout)]),
        )
    whole = _intervals.complement(seen, all_keys(layout))
    pairs, which = np.unique(a.number * 4 + edge_kinds(a.place, layout), return_inverse=True)
    bits = ~a.bits[pairs // 4] & extents(layout)[pairs % 4] if len(pairs) else no_bits(layout)
    return Cells(whole, a.place, which, bits)


def union(a: Cells, b: Cells, layout: Layout) -> Cells:
    """Return the pairs that either of two masks shows."""
    if not len(a.place) and not len(b.place):
        return only_whole(
            _intervals.union(
                np.concatenate([a.whole.first, b.whole.first]),
                np.concatenate([a.whole.last, b.whole.last]),
            ),
            layout,
        )
    return complement(intersection(complement(a, layout), complement(b, layout)), layout)


def difference(a: Cells, b: Cells, layout: Layout) -> Cells:
    """Return the pairs that exactly one of two masks shows."""
    return intersection(union(a, b, layout), complement(intersection(a, b), layout))


def repeated(cells: Cells, unit: int, index: Integers) -> Cells:
    """Return the parts `index` of the line, each of which is `unit` long, end to end."""
    step = np.arange(len(index)) - index

    def part_of(points: Integers) -> tuple[Integers, Integers]:
        begin = np.searchsorted(points, index * unit)
        count = np.searchsorted(points, (index + 1) * unit) - begin
        return _intervals.counted(begin, count), np.repeat(step * unit, count)

    at, moved = part_of(cells.whole.first)
    whole = Intervals(cells.whole.first[at] + moved, cells.whole.last[at] + moved)
    at, moved = part_of(cells.place)
    return Cells(whole, cells.place[at] + moved, cells.number[at], cells.bits)


def count(cells: Cells, layout: Layout) -> int:
    """Return the number of visible pairs of a query and a key."""
    length = cells.whole.last - cells.whole.first
    rest = layout.q_len % layout.row_queries
    is_cut = (cells.whole.first // layout.step) % max(layout.rows, 1) == layout.rows - 1
    is_cut &= rest > 0
    in_bits = np.bitwise_count(cells.bits).sum(axis=(1, 2), dtype=np.int64)[cells.number]
    return (
        int(length[~is_cut].sum()) * layout.row_queries
        + int(length[is_cut].sum()) * rest
        + int(in_bits.sum())
    )


def seeing(cells: Cells, layout: Layout) -> Bools:
    """Return which queries see a key, shape ``(*planes, q_len)``."""
    sees = np.zeros((layout.all_rows, layout.row_queries), bool)
    if len(cells.place):
        in_bits = np.asarray(cells.bits.any(axis=-1))
        np.logical_or.at(sees, cells.place // layout.step, in_bits[cells.number])
    sees[cells.whole.first // layout.step] = True
    by_plane = sees.reshape(*layout.planes, -1) if sees.size else sees.reshape(*layout.planes, 0)
    return np.asarray(by_plane[..., : layout.q_len])
