"""Compute the positions of queries among the keys, and the keys that they see by position."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import part_at
from regard._arguments.numbers import MOST, window_sides

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Integers, Place

    Span = tuple[int, int]

# No array is this long, so a position at this distance is beyond all keys.
_FAR = 2**61
_NO_LIMIT = np.asarray(0)


@dataclass(frozen=True, slots=True)
class Positions:
    """The keys that the queries of a call see by their positions.

    Query i is at position ``i + query_offset`` and sees the keys from `left` before it to `right`
    after it, limited to the keys from `begin` up to `end`. Arrays contain one number per batch
    entry, or one for all: they broadcast to the batch axes.
    """

    q_len: int
    kv_len: int | None
    """None if the number of keys is not known."""
    query_offset: Integers
    left: int | None
    """None for no limit, as in `right`."""
    right: int | None
    begin: Integers | None
    """The keys before this one are padding. None for no padding."""
    end: Integers | None
    """The keys from this one on do not exist. None if all exist."""

    @classmethod
    def of(cls, options: Mapping[str, Any], q_len: int, kv_len: int | None) -> Positions:
        """Read the options of a call that has been checked."""
        begin, end = _integers(options.get("left_padding")), _integers(options.get("key_lengths"))
        offset = options.get("query_offset", 0)
        if isinstance(offset, str):  # "end"
            assert end is not None or kv_len is not None
            offset = np.asarray(kv_len if end is None else end) - q_len
        window = options.get("window")
        left, right = (None, None) if window is None else window_sides(window)
        if options.get("is_causal"):
            right = 0
        return cls(q_len, kv_len, np.asarray(offset, np.int64), left, right, begin, end)

    def entry(self, place: Place) -> Positions:
        """Return the positions of some batch entries: an index or a slice for each axis."""
        begin, end = (
            None if limit is None else np.asarray(part_at(limit, place))
            for limit in (self.begin, self.end)
        )
        offset = np.asarray(part_at(self.query_offset, place))
        return replace(self, query_offset=offset, begin=begin, end=end)

    def chunk(self, queries: Span, keys: Span) -> Positions:
        """Return the positions of some queries, relative to the first of some keys."""
        start, length = keys[0], keys[1] - keys[0]
        distance = queries[0] - start
        # No key is so far that an offset beyond 64 bits differs from the last one within.
        least, most = -MOST - 1 - min(distance, 0), MOST - max(distance, 0)
        begin, end = (
            None if limit is None else np.asarray(np.clip(limit - start, 0, length))
            for limit in (self.begin, self.end)
        )
        return replace(
            self,
            q_len=queries[1] - queries[0],
            kv_len=length,
            query_offset=np.clip(self.query_offset, least, most) + distance,
            begin=begin,
            end=end,
        )

    def options(self) -> dict[str, Any]:
        """Return the options of a call with these positions."""
        options: dict[str, Any] = {"query_offset": _plain(self.query_offset)}
        if self.left is not None or self.right is not None:
            options["window"] = self.left, self.right
        if self.end is not None:
            options["key_lengths"] = _plain(self.end)
        if self.begin is not None:
            options["left_padding"] = _plain(self.begin)
        return options

    def of_queries(self) -> Integers:
        """Return the position of each query, of shape (..., q_len), clipped outside all keys."""
        near = np.clip(self.query_offset, -_FAR, _FAR)
        return np.asarray(near[..., None] + np.arange(self.q_len))

    def existing(self) -> tuple[Integers, Integers]:
        """Return the begin and the end of the existing keys of each entry."""
        assert self.kv_len is not None
        begin = np.asarray(0) if self.begin is None else self.begin
        return begin, np.asarray(self.kv_len) if self.end is None else self.end

    def intervals(self, rows: slice) -> tuple[Integers, Integers]:
        """Return the begin and the end of the keys that each of some rows of one entry sees.

        A row is fully masked if its end is not larger than its begin.
        """
        begin, end = map(int, self.existing())
        queries = np.arange(rows.start, rows.stop)
        first = np.full(len(queries), begin)
        if self.left is not None:
            first = np.maximum(queries + self._diagonal(-self.left), begin)
        last = np.full(len(queries), end)
        if self.right is not None:
            last = np.minimum(queries + self._diagonal(self.right) + 1, end)
        return first, last

    def visible(self) -> tuple[int, float]:
        """Return the begin and the end of the keys that any query of any entry sees.

        The end is infinity if only the number of keys limits the visible keys. Both are 0 if no key
        is visible.
        """
        unlimited = math.inf if self.kv_len is None else self.kv_len
        first, last = math.inf, 0.0
        for offset, begin, end in self._entries():
            stop = unlimited if self.end is None else min(end, unlimited)
            if self.left is not None:
                begin = max(begin, offset - self.left)
            if self.right is not None:
                stop = min(stop, offset + self.q_len + self.right)
            if begin < stop:
                first, last = min(first, begin), max(last, stop)
        if not self.q_len or not last:
            return 0, 0
        return int(first), last if last == math.inf else int(last)

    def _entries(self) -> Iterable[tuple[int, int, int]]:
        """Return the offset, begin and end of each entry as Python integers, 0 for no limit."""
        limits = (_NO_LIMIT if each is None else each for each in (self.begin, self.end))
        numbers = self.query_offset, *limits
        if not any(each.ndim for each in numbers):
            return (tuple(map(int, numbers)),)  # type: ignore[return-value]
        return zip(*(each.ravel().tolist() for each in np.broadcast_arrays(*numbers)), strict=True)

    def _diagonal(self, shift: int) -> int:
        """Return the bound for the first query, clipped to the range in which it matters."""
        assert self.kv_len is not None
        return max(-self.q_len, min(int(self.query_offset) + shift, self.kv_len))


def _integers(value: ArrayLike | None) -> Integers | None:
    return None if value is None else np.asarray(value, np.int64)


def _plain(numbers: Integers) -> Any:
    """Return one number as an int, and an array unchanged."""
    return int(numbers) if numbers.ndim == 0 else numbers
