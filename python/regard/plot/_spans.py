"""Read which keys some queries of a sparse mask see, without a dense array.

Sparse masks consist of the arrays that `regard.masks._rows.SparseRows` describes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Bools = NDArray[np.bool_]

# Pairs of a query and a key that are read as bools at a time.
_PAIRS = 1 << 20


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
    arrays = mask._arrays()
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

    The first bit of a span is that of its `query` and its `key`. Bits outside the span are False.
    """
    bits = mask._arrays().bits
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
