"""Compute with sparse masks whose rows and blocks are aligned."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.ma  # np.unique imports it at its first use

from regard.masks import _intervals
from regard.masks._intervals import NOTHING, Intervals
from regard.masks._rows import ALL_QUERIES, Layout, SparseRows

if TYPE_CHECKING:
    from regard._arguments.arrays import Bools, Bytes, Integers


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


def only_whole(whole: Intervals, layout: Layout) -> Cells:
    """Return cells without partial blocks."""
    height, width = layout.block or (0, 0)
    return Cells(whole, *NOTHING, np.zeros((0, height, -(-width // 8)), np.uint8))


def everything(layout: Layout) -> Cells:
    """Return cells in which all queries see all keys."""
    first = np.arange(layout.all_rows if layout.kv_len else 0) * layout.step
    return only_whole(Intervals(first, first + layout.kv_len), layout)


def blocks_at(place: Integers, layout: Layout) -> Intervals:
    """Return the union of the blocks with these first keys."""
    return _intervals.union(place, ends(place, layout))


def ends(place: Integers, layout: Layout) -> Integers:
    """Return the ends of the blocks with these first keys."""
    width = layout.block[1] if layout.block else 0
    return np.asarray(np.minimum(place + width, place // layout.step * layout.step + layout.kv_len))


def edge_kinds(place: Integers, layout: Layout) -> Integers:
    """Return which blocks the end of the mask cuts, as indices of `extents`.

    The number is 0 inside the mask, plus 1 for blocks that the last query cuts, and plus 2 for
    blocks that the last key cuts.
    """
    assert layout.block is not None
    is_low = layout.queries_of(place // layout.step) < layout.block[0]
    is_narrow = place % layout.step + layout.block[1] > layout.kv_len
    return np.asarray(is_low + 2 * is_narrow, np.int64)


def extents(layout: Layout) -> Bytes:
    """Return the bits inside the mask, of blocks of each kind of `edge_kinds`."""
    assert layout.block is not None
    height, width = layout.block
    rows = np.arange(height) < np.array([[height], [layout.q_len % height]])
    keys = np.arange(width) < np.array([[width], [layout.kv_len % width]])
    packed = np.packbits(keys, axis=-1, bitorder="little")
    kind = np.arange(4)
    return rows[kind & 1, :, None] * packed[kind >> 1, None, :]


def combined(rule: np.ufunc, a: Cells, b: Cells, layout: Layout) -> Cells:
    """Combine two masks of one layout by `numpy.bitwise_and`, `bitwise_or` or `bitwise_xor`.

    Each combination of bits and edges is computed once, for all blocks that have it.
    """
    whole = _intervals.combined(rule, a.whole, b.whole)
    place = np.union1d(a.place, b.place)
    if not len(place):
        return only_whole(whole, layout)
    sizes = len(a.bits) + 2, len(b.bits) + 2, 4
    codes = _codes(a, place), _codes(b, place), edge_kinds(place, layout)
    distinct, which = np.unique(np.ravel_multi_index(codes, sizes), return_inverse=True)
    of_a, of_b, kind = np.unravel_index(distinct, sizes)
    inside = extents(layout)[kind]
    bits = rule(_bits_of(a, of_a), _bits_of(b, of_b)) & inside
    is_whole = (bits == inside).all(axis=(1, 2))
    keep = (bits.any(axis=(1, 2)) & ~is_whole)[which]
    whole = _intervals.difference(whole, blocks_at(place, layout))
    full = blocks_at(place[is_whole[which]], layout)
    whole = _intervals.combined(np.logical_or, whole, full)
    return Cells(whole, place[keep], which[keep], bits)


def trimmed(cells: Cells, layout: Layout) -> Cells:
    """Return cells whose bits outside the mask are 0, and whose partial blocks are partial."""
    return combined(np.bitwise_and, cells, everything(layout), layout)


def _codes(cells: Cells, place: Integers) -> Integers:
    """Return what a mask shows of blocks: nothing (0), everything (1), or bits (2 + number)."""
    codes = _intervals.contains(cells.whole, place).astype(np.int64)
    codes[np.searchsorted(place, cells.place)] = cells.number + 2
    return codes


def _bits_of(cells: Cells, codes: Any) -> Bytes:
    bits = np.zeros((len(codes), *cells.bits.shape[1:]), np.uint8)
    bits[codes == 1] = 255
    bits[codes > 1] = cells.bits[codes[codes > 1] - 2]
    return bits


def rows_of(cells: Cells, layout: Layout) -> SparseRows:
    """Return the arrays of a mask. A single query is a row without blocks, which broadcasts."""
    if layout.q_len != 1:
        return arrays_of(cells, layout)
    if layout.block:
        cells = _without_blocks(cells, layout)
    return arrays_of(cells, layout._replace(block=None))._replace(row_queries=ALL_QUERIES)


def arrays_of(cells: Cells, layout: Layout) -> SparseRows:
    """Return the arrays of a mask with the rows of its layout."""
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
        spans[len(first) :, 0] = cells.place - partial_row * layout.step
        spans[len(first) :, 1] = ends(cells.place, layout) - partial_row * layout.step
        spans[len(first) :, 2] = number
        order = np.argsort(np.concatenate([first, cells.place]), kind="stable")
        spans, row = spans[order], np.concatenate([row, partial_row])[order]
    before = np.zeros(layout.all_rows + 1, np.int64)
    np.cumsum(np.bincount(row.astype(np.intp), minlength=layout.all_rows), out=before[1:])
    planes = math.prod(layout.planes)
    if planes == 1:
        starts = before
    else:
        starts = before[np.arange(planes)[:, None] * layout.rows + np.arange(layout.rows + 1)]
    return SparseRows(
        starts.reshape(*layout.planes, layout.rows + 1),
        spans,
        bits,
        layout.row_queries,
        0,
        0,
        layout.shape,
    )


def _without_blocks(cells: Cells, layout: Layout) -> Cells:
    """Return the cells of a mask with one query, without blocks."""
    plain = layout._replace(block=None)
    bits = cells.bits[:, 0]
    most_runs = np.bitwise_count(bits & ~(bits << 1)).sum(axis=-1, dtype=np.int64)
    plain.check(len(cells.whole.first) + int(most_runs[cells.number].sum()))
    shown = np.unpackbits(bits[cells.number], axis=-1, bitorder="little")
    at, first, last = _intervals.runs(shown.view(np.bool_))
    start = cells.place[at]
    whole = _intervals.union(
        np.concatenate([cells.whole.first, start + first]),
        np.concatenate([cells.whole.last, start + last]),
    )
    return only_whole(whole, plain)


def count(cells: Cells, layout: Layout) -> int:
    """Return the number of visible pairs of a query and a key."""
    length = cells.whole.last - cells.whole.first
    queries = layout.queries_of(cells.whole.first // layout.step)
    in_bits = np.bitwise_count(cells.bits).sum(axis=(1, 2), dtype=np.int64)[cells.number]
    return int((length * queries).sum()) + int(in_bits.sum())


def seeing(cells: Cells, layout: Layout) -> Bools:
    """Return which queries see a key, shape ``(*planes, q_len)``."""
    sees = np.zeros((layout.all_rows, layout.row_queries), bool)
    if len(cells.place):
        in_bits = np.asarray(cells.bits.any(axis=-1))
        np.logical_or.at(sees, cells.place // layout.step, in_bits[cells.number])
    sees[cells.whole.first // layout.step] = True
    by_plane = sees.reshape(*layout.planes, layout.rows * layout.row_queries)
    return np.asarray(by_plane[..., : layout.q_len])
