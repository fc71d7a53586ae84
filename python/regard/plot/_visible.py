"""Count the pairs of a query and a key that masks and positions make visible, without a square.

Sparse masks consist of the arrays that `regard.masks._rows.SparseRows` describes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.masks import is_sparse
from regard.masks import Ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from regard._arguments.masks import Masks
    from regard._arguments.positions import Positions
    from regard.plot._part import Part

    Array = NDArray[Any]
    Integers = NDArray[np.int64]

# Numbers of query-key pairs that are read as bools at a time, and of queries.
_PAIRS = 1 << 20
_QUERIES = 1 << 10


def visible_pairs(positions: Positions, masks: Masks, part: Part) -> Array:
    """Return the number of visible pairs in each pixel, for masks of one head."""
    mask = masks.shown if is_sparse(masks.shown) and masks.bias is None else None
    counts = np.zeros((part.height, part.width))
    step = max(1, _PAIRS // part.lengths[1]) if masks.arrays and mask is None else _QUERIES
    for pixel, (begin, end) in enumerate(zip(part.rows, part.rows[1:], strict=False)):
        for first in range(begin, end, step):
            rows = slice(first, min(first + step, end))
            if mask is not None:
                counts[pixel] += _of_sparse(positions, mask, rows, part.columns)
            else:
                counts[pixel] += _of_dense(positions, masks, rows, part)
    return counts


def _of_dense(positions: Positions, masks: Masks, rows: slice, part: Part) -> Array:
    first, last = positions.intervals(rows)
    shown = masks.visible(rows, slice(*part.keys))
    if shown is None:
        return _keys_between(first, last, np.ones(len(first)), part.columns)
    keys = np.arange(*part.keys)
    seen = (keys >= first[:, None]) & (keys < last[:, None]) & shown
    return np.asarray(np.add.reduceat(seen.sum(axis=0), part.columns[:-1] - part.keys[0]))


def _of_sparse(positions: Positions, mask: Any, rows: slice, edges: Integers) -> Array:
    first, last = (np.clip(each, edges[0], edges[-1]) for each in positions.intervals(rows))
    mask = mask if mask.shape[0] == 1 else mask[rows]
    if first.max() > edges[0] or last.min() < edges[-1]:
        mask = mask & Ranges(first, last)
    arrays = mask._sparse_rows()
    spans = _Spans.of(arrays, rows.stop - rows.start, edges)
    whole = spans.at(spans.number < 0)
    counts = _keys_between(whole.first, whole.last, whole.bottom - whole.top, edges)
    for some, shown in _bits(arrays.bits, spans.at(spans.number >= 0)):
        keys = some.key[:, None] + np.arange(shown.shape[2])
        column = np.clip(np.searchsorted(edges, keys, "right") - 1, 0, len(counts) - 1)
        counts += np.bincount(column.ravel(), shown.sum(axis=1).ravel(), len(counts))
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


class _Spans(NamedTuple):
    """The spans of some queries, cut to these queries and to the drawn keys.

    `query` and `key` are the query and the key of the first bit of a span, which may have been cut
    off. Its queries are from `top` up to `bottom`, and its keys from `first` up to `last`. `number`
    is -1 if all queries see all keys of the span, or else the number of its bits.
    """

    query: Integers
    key: Integers
    top: Integers
    bottom: Integers
    first: Integers
    last: Integers
    number: Integers

    @classmethod
    def of(cls, arrays: Any, queries: int, edges: Integers) -> _Spans:
        """Return the spans of the arrays of a mask of two axes.

        A mask with one query shows its keys to all queries.
        """
        *_, q_len, kv_len = arrays.shape
        begin, end = arrays.row_range()
        starts = arrays.starts[begin : end + 1]
        spans = arrays.spans[starts[0] : starts[-1]]
        row = np.repeat(np.arange(begin, end), np.diff(starts))
        query, height = row * arrays.row_queries - arrays.first_query, arrays.row_queries
        if q_len == 1:
            query, height = np.zeros(len(row), np.int64), queries
        key = spans[:, 0] - arrays.first_key
        found = cls(
            query,
            key,
            np.maximum(query, 0),
            np.minimum(query + height, queries),
            np.maximum(key, edges[0]),
            np.minimum(spans[:, 1] - arrays.first_key, min(kv_len, edges[-1])),
            spans[:, 2],
        )
        return found.at(found.first < found.last)

    def at(self, which: NDArray[np.bool_] | slice) -> _Spans:
        """Return some of the spans."""
        return _Spans(*(part[which] for part in self))


def _bits(bits: NDArray[np.uint8], spans: _Spans) -> Iterator[tuple[_Spans, NDArray[np.bool_]]]:
    """Yield some partial spans at a time, with their bits as an array (spans, queries, keys).

    Bits outside the span are False.
    """
    height, width = bits.shape[1], 8 * bits.shape[2]
    step = max(1, _PAIRS // max(height * width, 1))
    for start in range(0, len(spans.number), step):
        part = spans.at(slice(start, start + step))
        shown = np.unpackbits(bits[part.number], axis=-1, bitorder="little").view(np.bool_)
        shown &= _within(part.top - part.query, part.bottom - part.query, height)[:, :, None]
        shown &= _within(part.first - part.key, part.last - part.key, width)[:, None, :]
        yield part, shown


def _within(first: Integers, last: Integers, size: int) -> NDArray[np.bool_]:
    places = np.arange(size)
    return np.asarray((places >= first[:, None]) & (places < last[:, None]))
