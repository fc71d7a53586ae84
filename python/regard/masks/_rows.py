"""The arrays of sparse masks: spans of keys for each row of queries, their views and bits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.arrays import bytes_of, shown
from regard._arguments.numbers import repeat
from regard.masks._intervals import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._arguments.arrays import Bools, Bytes, Integers


# The number of queries of a row that broadcasts over all queries.
ALL_QUERIES = 2**62
# The number of pairs of a query and a key that are held as bools at a time.
MOST_PAIRS = 2**22
# The largest block, which is read as a whole.
_MOST_PAIRS_OF_BLOCK = 2**24
# NumPy broadcasts no more axes.
_MOST_AXES = 32
# Building a mask needs about this many times the memory of the mask.
_COPIES = 4
_POSSIBLE = (
    "a sparse mask accepts integers, None and an ellipsis on the batch and heads axes, and slices "
    "without steps on all axes"
)


def check_axes(name: str, shape: tuple[int, ...]) -> None:
    """Raise ValueError if there are too many axes."""
    if len(shape) > _MOST_AXES:
        raise ValueError(f"{name} must have at most {_MOST_AXES} axes, got {len(shape)}")


def distinct(array: NDArray[Any], inner: int) -> NDArray[Any]:
    """Return an array without the copies that are broadcast along an axis.

    The last `inner` axes are not examined.
    """
    axes = zip(array.shape[:-inner], array.strides[:-inner], strict=True)
    return array[tuple(slice(1) if size and not stride else slice(None) for size, stride in axes)]


class SparseRows(NamedTuple):
    """The arrays and numbers that a sparse mask consists of.

    Attributes
    ----------
    starts : numpy.ndarray of int64, shape (*planes, rows + 1)
        Row ``r`` of plane ``p`` has the spans ``starts[p, r] .. starts[p, r + 1] - 1``. The planes
        are the batch and heads axes.
    spans : numpy.ndarray of int64, shape (n, 3)
        First key, end, and -1 if all queries of the row see these keys, or else a number in `bits`.
        The spans of a row are sorted, disjoint and not empty. Two whole spans do not touch.
    bits : numpy.ndarray of uint8, shape (m, row_queries, ceil(block keys / 8))
        Bit ``k`` of row ``query % row_queries`` specifies whether the query sees the key
        ``first + k``. The lowest bit of a byte is the first.
    row_queries : int
        The number of queries of a row.
    first_query, first_key : int
        Query ``i`` of the mask is query ``i + first_query`` of the rows, and key ``j`` is key
        ``j + first_key`` of the spans, which may reach beyond the mask.
    shape : tuple of int
        The shape of the mask, ``(*planes, q_len, kv_len)``.
    """

    starts: Integers
    spans: Integers
    bits: Bytes
    row_queries: int
    first_query: int
    first_key: int
    shape: tuple[int, ...]

    def check(self) -> None:
        """Raise ValueError if the arrays are inconsistent, as after damage."""
        starts, spans, bits = self.starts, self.spans, self.bits
        is_inside = (
            starts.min(initial=0) >= 0
            and starts.max(initial=0) <= len(spans)
            and spans[:, 2].max(initial=-1) < len(bits)
            and self.row_range()[1] < starts.shape[-1]
            and (not len(bits) or (bits.shape[1] == self.row_queries))
        )
        if not is_inside:
            raise ValueError("the arrays of a sparse mask do not agree: its data are damaged")

    def row_range(self) -> tuple[int, int]:
        """Return the first row of the mask and the end after its last row."""
        first, q_len = self.first_query, self.shape[-2]
        begin = first // self.row_queries
        return begin, (first + q_len - 1) // self.row_queries + 1 if q_len else begin

    def distinct(self) -> SparseRows:
        """Return the distinct planes, without the copies that are broadcast along an axis."""
        once = distinct(self.starts, 1)
        return self._replace(starts=once, shape=(*once.shape[:-1], *self.shape[-2:]))

    def spread(self, planes: tuple[int, ...]) -> SparseRows:
        """Broadcast the planes, without copies."""
        if planes == self.shape[:-2]:
            return self
        starts = np.broadcast_to(self.starts, (*planes, self.starts.shape[-1]))
        return self._replace(starts=starts, shape=(*planes, *self.shape[-2:]))

    def stored_keys(self) -> tuple[Integers, Integers]:
        """Return the begin and the end of the keys of all spans, not sorted."""
        spans = spans_of(self.distinct())
        return spans.first, spans.last

    def part(self, index: Any) -> SparseRows:
        """Return the part of a mask that an index selects, or raise IndexError."""
        *planes, queries, keys = _by_axis(index, len(self.shape))
        (first_query, end_query, _), (first_key, end_key, _) = (
            part.indices(length)
            for part, length in zip((queries, keys), self.shape[-2:], strict=True)
        )
        starts = self.starts[(*planes, slice(None))]
        lengths = max(end_query - first_query, 0), max(end_key - first_key, 0)
        return self._replace(
            starts=starts,
            first_query=self.first_query + first_query,
            first_key=self.first_key + first_key,
            shape=(*starts.shape[:-1], *lengths),
        )


def _by_axis(index: Any, ndim: int) -> list[Any]:
    """Return an index or a slice for each axis, and None for each new axis."""
    parts = list(index) if isinstance(index, tuple) else [index]
    for part in parts:
        is_int = isinstance(part, int | np.integer) and not isinstance(part, bool)
        if not (is_int or part is None or part is Ellipsis or isinstance(part, slice)):
            raise IndexError(f"{_POSSIBLE}, got {shown(part)}")
    if parts.count(Ellipsis) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    missing = ndim - sum(part is not None and part is not Ellipsis for part in parts)
    if missing < 0:
        raise IndexError(f"too many indices: the mask has {ndim} axes, got {ndim - missing}")
    at = parts.index(Ellipsis) if Ellipsis in parts else len(parts)
    parts[at : at + 1] = [slice(None)] * missing
    if not all(isinstance(part, slice) for part in parts[-2:]):
        raise IndexError(f"{_POSSIBLE}, got {shown(index)}: write i:i + 1 for one query or one key")
    for part in parts:
        if isinstance(part, slice) and part.step not in (None, 1):
            raise IndexError(f"{_POSSIBLE}, got {part}")
    return parts


class Layout(NamedTuple):
    """The size of a mask and of its rows, which are put end to end on one line.

    Key ``j`` of row ``r``, where the rows of all planes are counted, is at ``r * step + j``. A
    place without a key separates the rows.

    Attributes
    ----------
    planes : tuple of int
        The batch and heads axes.
    q_len, kv_len : int
        The number of queries and keys.
    block : tuple of two int, optional
        The queries and keys of a block. None means that each query has a row, without blocks.
    """

    planes: tuple[int, ...]
    q_len: int
    kv_len: int
    block: tuple[int, int] | None

    @classmethod
    def of(cls, shape: tuple[int, ...], block: tuple[int, int] | None) -> Layout:
        """Return the layout of a mask of some shape."""
        return cls(shape[:-2], shape[-2], shape[-1], block)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the mask."""
        return (*self.planes, self.q_len, self.kv_len)

    @property
    def row_queries(self) -> int:
        """The number of queries of a row."""
        return self.block[0] if self.block else 1

    @property
    def rows(self) -> int:
        """The number of rows of a plane."""
        return -(-self.q_len // self.row_queries)

    @property
    def columns(self) -> int:
        """The number of blocks of a row."""
        return -(-self.kv_len // self.block[1]) if self.block else 0

    @property
    def step(self) -> np.int64:
        """The distance of rows on the line; its products have 64 bits even if an index has 32."""
        return np.int64(self.kv_len + 1)

    @property
    def line(self) -> int:
        """The length of the line."""
        return self.all_rows * (self.kv_len + 1)

    @property
    def all_rows(self) -> int:
        """The number of rows of all planes."""
        return math.prod(self.planes) * self.rows

    def queries_of(self, row: Integers) -> Integers:
        """Return the number of queries of some rows; the last row of a plane may have fewer."""
        first = row % max(self.rows, 1) * self.row_queries
        return np.minimum(self.q_len - first, self.row_queries)

    def check(self, spans: int = 0) -> None:
        """Raise MemoryError if there is no memory for all rows with some spans in total.

        Raises ValueError if there are too many axes, if blocks are too large, or if the line is too
        long for 64 bits.
        """
        check_axes("a sparse mask", self.shape)
        if self.block and math.prod(self.block) > _MOST_PAIRS_OF_BLOCK:
            raise ValueError(
                f"blocks must have at most {_MOST_PAIRS_OF_BLOCK:,} pairs of query and key, got "
                f"{self.block[0]} x {self.block[1]}"
            )
        if self.line >= 2**62:
            raise ValueError(
                f"a sparse mask must have fewer than 2**62 pairs of rows and keys, got shape "
                f"{self.shape}"
            )
        needed = 8 * self.all_rows + 24 * spans
        try:
            np.empty(_COPIES * needed, np.uint8)
        except (MemoryError, ValueError):  # ValueError beyond 64 bits
            raise MemoryError(
                f"a sparse mask of shape {self.shape} would need {bytes_of(needed)}, and several "
                "times as much while it is built"
            ) from None


class Spans(NamedTuple):
    """The spans of some rows, cut to the keys of the mask.

    Attributes
    ----------
    row : numpy.ndarray of int64
        The row of each span, where the rows of all planes are counted.
    first, last : numpy.ndarray of int64
        The first key and the end.
    number : numpy.ndarray of int64
        The number in `bits`, or -1.
    origin : numpy.ndarray of int64
        The key of the first bit.
    """

    row: Integers
    first: Integers
    last: Integers
    number: Integers
    origin: Integers


def spans_of(rows: SparseRows, shape: tuple[int, ...] | None = None) -> Spans:
    """Return the spans of the rows of a mask, which broadcast to `shape`, the planes and rows."""
    begin, end = rows.row_range()
    starts = rows.starts[..., begin:end], rows.starts[..., begin + 1 : end + 1]
    if shape is not None:
        starts = np.broadcast_to(starts[0], shape), np.broadcast_to(starts[1], shape)
    counts = (starts[1] - starts[0]).ravel()
    which = counted(starts[0].ravel(), counts)
    row = repeat(np.arange(len(counts)), counts)
    spans = rows.spans[which]
    origin = spans[:, 0] - rows.first_key
    first = np.maximum(origin, 0)
    last = np.minimum(spans[:, 1] - rows.first_key, rows.shape[-1])
    found = Spans(row, first, last, spans[:, 2], origin)
    inside = first < last
    return found if inside.all() else Spans(*(part[inside] for part in found))


class Reader:
    """Reads parts of a sparse mask as dense arrays."""

    __slots__ = ("_ends", "_first_row", "_firsts", "_rows", "_rows_of_plane", "_spans", "_step")

    def __init__(self, rows: SparseRows) -> None:
        begin, end = rows.row_range()
        self._rows, self._step = rows, np.int64(rows.shape[-1] + 1)
        self._first_row, self._rows_of_plane = begin, end - begin
        self._spans = spans_of(rows)
        self._firsts = self._spans.row * self._step + self._spans.first
        self._ends = self._spans.row * self._step + self._spans.last

    def read(
        self,
        plane: Integers,
        query: Integers,
        key: Integers,
        size: tuple[int, int],
        q_len: int | None = None,
    ) -> Bools:
        """Return which keys the queries see, for n parts of equal size, shape ``(n, *size)``.

        A part begins at a plane, a query and a key. Elements outside the mask are False. `q_len` is
        the number of queries over which a mask with one query broadcasts.
        """
        rows = self._rows
        height, width = size
        queries = query[:, None] + np.arange(height, dtype=np.int64)
        inside = queries < (rows.shape[-2] if q_len is None else q_len)
        if rows.shape[-2] == 1:
            queries = np.zeros_like(queries)
        row = (queries + rows.first_query) // rows.row_queries - self._first_row
        row += plane[:, None] * self._rows_of_plane
        row = np.where(inside, row, 0).ravel()
        begin = row * self._step + repeat(key, height)
        end = np.minimum(begin + width, (row + 1) * self._step - 1)
        low = np.searchsorted(self._ends, begin, "right")
        high = np.searchsorted(self._firsts, end, "left")
        count = np.where(inside.ravel(), np.maximum(high - low, 0), 0)
        which = counted(low, count)
        at = repeat(np.arange(len(row)), count)
        shift = repeat(key, height)[at]
        number = self._spans.number[which]

        whole = number < 0
        edges = np.zeros((len(row), width + 1), np.int8)
        edges[at[whole], np.maximum(self._spans.first[which[whole]] - shift[whole], 0)] += 1
        edges[at[whole], np.minimum(self._spans.last[which[whole]] - shift[whole], width)] -= 1
        visible = np.cumsum(edges, axis=1, dtype=np.int8, out=edges)[:, :width].view(np.bool_)
        partial = ~whole
        if partial.any():
            which, at, shift = which[partial], at[partial], shift[partial]
            bit_row = (queries.ravel()[at] + rows.first_query) % rows.row_queries
            shown = np.unpackbits(
                rows.bits[number[partial], bit_row], axis=-1, bitorder="little"
            ).view(np.bool_)
            column = (self._spans.origin[which] - shift)[:, None] + np.arange(shown.shape[1])
            first = np.maximum(self._spans.first[which] - shift, 0)[:, None]
            last = np.minimum(self._spans.last[which] - shift, width)[:, None]
            part, bit = np.nonzero(shown & (column >= first) & (column < last))
            visible[at[part], column[part, bit]] = True
        return visible.reshape(len(plane), height, width)
