"""Blocks of scores: some queries of a head, with the keys that they see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.seen_keys import SeenKeys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from regard._arguments.masks import Masks
    from regard._arguments.positions import Positions

    Array = NDArray[Any]
    Bools = NDArray[np.bool_]
    Integers = NDArray[np.int64]

# The most scores in a block, few enough that several arrays of them fit in a processor's caches.
_SCORES = 1 << 18
# With more rows, more keys would be visible only to some of them, as with causality.
_ROWS = 128


class ScoreBlock(NamedTuple):
    """Some queries, a range of keys that contains all visible keys, and the visible pairs."""

    rows: slice
    keys: slice
    seen: Bools | None
    """Of shape (rows, keys); None if every row sees every key."""

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and keys."""
        return self.rows.stop - self.rows.start, self.keys.stop - self.keys.start

    def behind(self, positions: Positions) -> Array:
        """Return how far the keys are behind the queries, for each diagonal of the block."""
        rows, keys = self.shape
        start = int(positions.query_offset) + self.rows.start - self.keys.start
        return float(start) + np.arange(1 - keys, rows)

    def by_distance(self, numbers: Array) -> Array:
        """Return the number of its diagonal for each pair of the block, as a view."""
        return np.lib.stride_tricks.sliding_window_view(numbers, self.shape[1])[:, ::-1]


def column_of(behind: Array, columns: int) -> Integers:
    """Return the columns of `distance_bias` for keys at these distances behind their queries."""
    reach = columns // 2
    return np.asarray(np.clip(reach - behind, 0, 2 * reach), np.int64)


class Visibility(NamedTuple):
    """The keys that the queries of one head see."""

    positions: Positions
    masks: Masks
    distances: Array | None
    """The head's row of `distance_bias`, in which -inf hides keys."""

    def blocks(self) -> Iterator[ScoreBlock]:
        """Iterate over the blocks of the head, except fully masked blocks.

        They depend only on the visible pairs: a sparse mask gives the same blocks as a dense mask.
        """
        start = 0
        while start < self.positions.q_len:
            rows = slice(start, min(start + _ROWS, self.positions.q_len))
            first, last = self._extents(rows)
            first, last = np.minimum.accumulate(first), np.maximum.accumulate(last)
            widths = np.maximum(last - first, 0)
            count = max(1, int((np.arange(1, len(widths) + 1) * widths <= _SCORES).sum()))
            rows = slice(start, start + count)
            start += count
            if not widths[count - 1]:
                continue
            keys = slice(int(first[count - 1]), int(last[count - 1]))
            seen = self._seen(rows, keys)
            yield ScoreBlock(rows, keys, None if seen is None or seen.all() else seen)

    def _extents(self, rows: slice) -> tuple[Integers, Integers]:
        """Return the first key that each of some rows sees, and the end after the last one."""
        kv_len = self.positions.kv_len
        assert kv_len is not None
        first, last = (np.clip(each, 0, kv_len) for each in self.positions.intervals(rows))
        keys = slice(int(first.min()), int(last.max()))
        of_spans = SeenKeys.of(self.masks.at((rows, slice(None))))
        if of_spans is not None:
            keys = slice(max(keys.start, of_spans.first), min(keys.stop, of_spans.end))
        is_empty = (first >= last) | (keys.start >= keys.stop)
        if is_empty.all() or not (self.masks.arrays or self._hides_distances):
            return np.where(is_empty, kv_len, first), np.where(is_empty, 0, last)
        step = max(1, _SCORES // (keys.stop - keys.start))
        for start in range(rows.start, rows.stop, step):
            some = slice(start, min(start + step, rows.stop))
            seen = self._seen(some, keys)
            assert seen is not None
            at = slice(some.start - rows.start, some.stop - rows.start)
            is_empty[at] = ~seen.any(axis=-1)
            first[at] = keys.start + seen.argmax(axis=-1)
            last[at] = keys.stop - seen[:, ::-1].argmax(axis=-1)
        return np.where(is_empty, kv_len, first), np.where(is_empty, 0, last)

    def _seen(self, rows: slice, keys: slice) -> Bools | None:
        """Return the visible pairs of some rows and keys, or None if all are visible."""
        block = ScoreBlock(rows, keys, None)
        first, last = self.positions.intervals(rows)
        seen: Bools | None = None
        if first.max() > keys.start or last.min() < keys.stop:
            places = np.arange(keys.start, keys.stop)
            seen = (places >= first[:, None]) & (places < last[:, None])
        shown = self.masks.visible(rows, keys)
        if shown is not None:
            shown = np.broadcast_to(shown, block.shape)
            seen = shown if seen is None else seen & shown
        if self._hides_distances:
            assert self.distances is not None
            column = column_of(block.behind(self.positions), len(self.distances))
            shown = block.by_distance(~np.isneginf(self.distances)[column])
            seen = shown if seen is None else seen & shown
        return seen

    @property
    def _hides_distances(self) -> bool:
        return self.distances is not None and bool(np.isneginf(self.distances).any())


def most_scores(positions: Positions) -> int:
    """Return the largest number of scores in a block, which depends only on lengths and sides."""
    kv_len = positions.kv_len
    assert kv_len is not None
    of_row = kv_len
    if positions.left is not None and positions.right is not None:
        of_row = min(kv_len, positions.left + positions.right + 1)
    rows = min(_ROWS, positions.q_len)
    return min(rows * min(kv_len, of_row + rows), max(_SCORES, of_row))
