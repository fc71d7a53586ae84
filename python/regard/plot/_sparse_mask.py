"""Count the visible pairs of sparse masks, without a dense array.

Sparse masks consist of the arrays that `regard.masks._rows.SparseRows` describes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard.plot._pooling import starts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from regard._arguments.positions import Positions
    from regard.plot._pooling import Part

    Array = NDArray[Any]
    Integers = NDArray[np.int64]
    Bools = NDArray[np.bool_]

# Numbers of query-key pairs that are read as bools at a time, and of queries whose spans are read.
_PAIRS = 1 << 20
_QUERIES = 1 << 10


def visible_pairs(positions: Positions, mask: Any, part: Part) -> Array:
    """Return the number of visible pairs in each pixel, for a sparse mask with two axes."""
    counts = np.zeros((part.height, part.width))
    ends = [*starts(part.queries, part.height).tolist(), part.queries[1]]
    edges = np.append(starts(part.keys, part.width), part.keys[1])
    for pixel in range(part.height):
        for first in range(ends[pixel], ends[pixel + 1], _QUERIES):
            rows = slice(first, min(first + _QUERIES, ends[pixel + 1]))
            counts[pixel] += _visible_of_rows(positions, mask, rows, edges)
    return counts


def _visible_of_rows(positions: Positions, mask: Any, rows: slice, edges: Integers) -> Array:
    """Return the number of visible pairs of some queries, for the keys between two edges each."""
    first, last = (np.clip(each, edges[0], edges[-1]) for each in positions.intervals(rows))
    spans = spans_of(mask, rows)
    is_whole = spans.number < 0
    whole = spans.at(is_whole)
    counts = np.zeros(len(edges) - 1)
    if first.max() == edges[0] and last.min() == edges[-1]:
        counts += _keys_between(whole.first, whole.last, whole.bottom - whole.top, edges)
    else:
        for some in _parts(whole, rows.stop - rows.start):
            heights = some.bottom - some.top
            # The queries of all spans, end to end.
            at = np.repeat(some.top - np.cumsum(heights) + heights - rows.start, heights)
            at += np.arange(len(at))
            begin = np.maximum(np.repeat(some.first, heights), first[at])
            end = np.minimum(np.repeat(some.last, heights), last[at])
            counts += _keys_between(begin, end, np.ones(len(at)), edges)
    for some, shown in bits_of(mask, spans.at(~is_whole)):
        queries = some.query[:, None] + np.arange(shown.shape[1]) - rows.start
        keys = some.key[:, None] + np.arange(shown.shape[2])
        at = np.clip(queries, 0, len(first) - 1)
        seen = shown & (keys[:, None, :] >= first[at][:, :, None])
        seen &= keys[:, None, :] < last[at][:, :, None]
        column = np.clip(np.searchsorted(edges, keys, "right") - 1, 0, len(counts) - 1)
        counts += np.bincount(column.ravel(), seen.sum(axis=1).ravel(), len(counts))
    return counts


def _keys_between(first: Integers, last: Integers, weight: Array, edges: Integers) -> Array:
    """Return how many keys of some intervals are between each two edges, times their weights."""
    first, last = (np.clip(each, edges[0], edges[-1]) for each in (first, last))
    is_some = first < last
    weight = weight[is_some]
    pixels = len(edges) - 1
    counts = np.zeros(pixels)
    for bound, sign in ((first[is_some], 1), (last[is_some], -1)):
        # The keys from the bound on: some keys of its own pixel, and all keys of later pixels.
        pixel = np.searchsorted(edges, bound, "right") - 1
        after = np.cumsum(np.bincount(pixel + 1, weight, pixels + 2))[:pixels] * np.diff(edges)
        own = weight * (np.append(edges, edges[-1])[pixel + 1] - bound)
        counts += sign * (after + np.bincount(pixel, own, pixels + 1)[:pixels])
    return counts


def _parts(spans: Spans, height: int) -> Iterator[Spans]:
    """Yield groups of spans with a limited number of queries."""
    step = max(1, _PAIRS // height)
    for start in range(0, len(spans.top), step):
        yield spans.at(slice(start, start + step))


class Spans(NamedTuple):
    """The spans of some queries, cut to these queries and to the keys of the mask.

    Attributes
    ----------
    query, key : numpy.ndarray of int64, shape (spans,)
        The query and the key to which the first bit of a span belongs. They may have been cut off.
    top, bottom : numpy.ndarray of int64, shape (spans,)
        The first query of each span, and the end after its last query.
    first, last : numpy.ndarray of int64, shape (spans,)
        The first key, and the end after the last key.
    number : numpy.ndarray of int64, shape (spans,)
        -1 if all queries see all keys of the span, or else the number of its bits.
    """

    query: Integers
    key: Integers
    top: Integers
    bottom: Integers
    first: Integers
    last: Integers
    number: Integers

    def at(self, which: Bools | slice) -> Spans:
        """Return some of the spans."""
        return Spans(*(part[which] for part in self))


def spans_of(mask: Any, rows: slice) -> Spans:
    """Return the spans of some queries, at least one, of a sparse mask with two axes.

    A mask with one query shows its keys to all queries.
    """
    arrays = mask._sparse_rows()
    *_, q_len, kv_len = arrays.shape
    queries = slice(0, 1) if q_len == 1 else rows
    begin = (queries.start + arrays.first_query) // arrays.row_queries
    end = (queries.stop - 1 + arrays.first_query) // arrays.row_queries + 1
    starts = arrays.starts[begin : end + 1]
    spans = arrays.spans[starts[0] : starts[-1]]
    row = np.repeat(np.arange(begin, end), np.diff(starts))
    query, height = row * arrays.row_queries - arrays.first_query, arrays.row_queries
    if q_len == 1:
        query, height = np.full(len(row), rows.start), rows.stop - rows.start
    key = spans[:, 0] - arrays.first_key
    found = Spans(
        query,
        key,
        np.maximum(query, rows.start),
        np.minimum(query + height, rows.stop),
        np.maximum(key, 0),
        np.minimum(spans[:, 1] - arrays.first_key, kv_len),
        spans[:, 2],
    )
    return found.at(found.first < found.last)


def bits_of(mask: Any, spans: Spans) -> Iterator[tuple[Spans, Bools]]:
    """Yield some partial spans at a time, with their bits as an array (spans, queries, keys).

    The first bit of a span belongs to its `query` and its `key`. Bits outside the span are False.
    """
    bits = mask._sparse_rows().bits
    height, width = bits.shape[1], 8 * bits.shape[2]
    step = max(1, _PAIRS // max(height * width, 1))
    for start in range(0, len(spans.number), step):
        part = spans.at(slice(start, start + step))
        shown = np.unpackbits(bits[part.number], axis=-1, bitorder="little").view(np.bool_)
        shown &= _within(part.top - part.query, part.bottom - part.query, height)[:, :, None]
        shown &= _within(part.first - part.key, part.last - part.key, width)[:, None, :]
        yield part, shown


def _within(first: Integers, last: Integers, size: int) -> Bools:
    places = np.arange(size)
    return np.asarray((places >= first[:, None]) & (places < last[:, None]))
