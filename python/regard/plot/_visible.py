"""Count the pairs of a query and a key that masks and positions make visible, without a square.

Sparse masks consist of the arrays that `regard.masks._rows.SparseRows` describes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.masks import is_sparse
from regard.masks._intervals import counted
from regard.masks._rows import spans_of

if TYPE_CHECKING:
    from regard._arguments.arrays import Array, Integers
    from regard._arguments.masks import Masks
    from regard._arguments.positions import Positions
    from regard.plot._part import Part


# Numbers of query-key pairs that are read at a time, and of queries.
_PAIRS = 1 << 18
_QUERIES = 1 << 12


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
    arrays = (mask if mask.shape[0] == 1 else mask[rows])._sparse_rows()
    spans = spans_of(arrays)
    # The queries of each span. A mask with one query has a single row of all queries.
    query = spans.row * arrays.row_queries - arrays.first_query % arrays.row_queries
    top, bottom = np.maximum(query, 0), np.minimum(query + arrays.row_queries, len(first))
    is_whole, is_limited = spans.number < 0, first.max() > edges[0] or last.min() < edges[-1]
    places, counts = np.arange(8 * arrays.bits.shape[2]), np.zeros(len(edges) - 1)

    def by_query(which: Integers) -> tuple[Integers, Integers, Integers, Integers]:
        """Return each query of some spans: its span, its row, and its first key and end."""
        heights = bottom[which] - top[which]
        span, row = np.repeat(which, heights), counted(top[which], heights)
        begin = np.maximum(spans.first[span], first[row])
        return span, row, begin, np.minimum(spans.last[span], last[row])

    step = max(1, _PAIRS // (min(arrays.row_queries, len(first)) * max(len(places), 1)))
    for start in range(0, len(query), step):
        group = np.arange(start, min(start + step, len(query)))
        whole, partial = group[is_whole[group]], group[~is_whole[group]]
        weight, begin, end = (bottom - top)[whole], spans.first[whole], spans.last[whole]
        if is_limited:
            _, _, begin, end = by_query(whole)
            weight = np.ones(len(begin))
        counts += _keys_between(begin, end, weight, edges)
        if not len(partial):
            continue
        span, row, begin, end = by_query(partial)
        packed = arrays.bits[spans.number[span], row - query[span]]
        seen = np.unpackbits(packed, axis=-1, bitorder="little")
        begin, end = begin - spans.origin[span], end - spans.origin[span]
        seen &= (places >= begin[:, None]) & (places < end[:, None])
        sums = np.add.reduceat(seen, np.searchsorted(span, partial), axis=0, dtype=np.int64)
        keys = spans.origin[partial, None] + places
        column = np.clip(np.searchsorted(edges, keys, "right") - 1, 0, len(counts) - 1)
        counts += np.bincount(column.ravel(), sums.ravel(), len(counts))
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
