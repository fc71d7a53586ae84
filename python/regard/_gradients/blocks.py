"""Blocks of consecutive queries, and the keys that they see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.numbers import window_sides

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Integers = NDArray[np.int64]

# The scores of a block: few enough that some arrays of them stay in a processor's caches.
_SCORES = 1 << 18
# More rows would have more keys that some of them see and others do not, as with causality.
_ROWS = 128


class Block(NamedTuple):
    """Queries, the keys among which are all that they see, and which of these each sees."""

    rows: slice
    keys: slice
    seen: NDArray[np.bool_] | None
    """Of shape (rows, keys); None where every row sees every key."""


class Mask(NamedTuple):
    """The mask of a call, or of one head of it: what it shows, and what is added to the scores."""

    shown: Array | None = None
    bias: Array | None = None

    def seen(self, block: Block) -> NDArray[np.bool_] | None:
        """Return which keys of a block its rows see, by the mask and as the block says."""
        seen = block.seen
        for part in self:
            if part is not None:
                shows = part[block.rows, block.keys]
                if shows.dtype != np.bool_:
                    shows = shows != -np.inf
                seen = shows if seen is None else seen & shows
        return seen


def mask_of(mask: Any) -> Mask:
    """Tell the parts of a mask, which has been checked."""
    if mask is None:
        return Mask()
    if isinstance(mask, tuple):
        return Mask(*mask)
    return Mask(mask, None) if mask.dtype == np.bool_ else Mask(None, mask)


class Positions(NamedTuple):
    """What the queries of a batch entry see by their positions.

    Query i stands at i + `query_offset`, and sees keys from `left` before to `right` after it, no
    others than those from `begin` up to `end`.
    """

    q_len: int
    kv_len: int
    query_offset: int
    left: int | None
    right: int | None
    begin: int
    end: int

    def blocks(self, mask: Mask) -> Iterator[Block]:
        """Go through the blocks of a head, without those that see nothing."""
        size = self._rows_of_block()
        for start in range(0, self.q_len, size):
            rows = slice(start, min(start + size, self.q_len))
            block = self._block(rows)
            if block is None:
                continue
            seen = mask.seen(block)
            if seen is not None and seen.all():
                seen = None
            if seen is None or seen.any():
                yield block._replace(seen=seen)

    def most_scores(self) -> int:
        """Return how many scores a block has at most. It depends on shapes and sides alone."""
        rows = min(self._rows_of_block(), self.q_len)
        return rows * min(self.kv_len, self._keys_of_row() + rows)

    def intervals(self, rows: slice) -> tuple[Integers, Integers]:
        """Return the first key that each of these rows sees, and the end of those that it sees.

        A row sees nothing where the end is not larger.
        """
        queries = np.arange(rows.start, rows.stop)
        return self._first_keys(queries), self._ends(queries)

    def _keys_of_row(self) -> int:
        if self.left is None or self.right is None:
            return self.kv_len
        return min(self.kv_len, self.left + self.right + 1)

    def _rows_of_block(self) -> int:
        return max(1, min(_SCORES // max(self._keys_of_row(), 1), _ROWS))

    def _block(self, rows: slice) -> Block | None:
        """Return the block of these rows, or None where they see nothing by their positions."""
        first, end = self.intervals(rows)
        sees_any = first < end
        if not sees_any.any():
            return None
        keys = slice(int(first[sees_any].min()), int(end[sees_any].max()))
        if first.max() <= keys.start and end.min() >= keys.stop:
            return Block(rows, keys, None)
        places = np.arange(keys.start, keys.stop)
        return Block(rows, keys, (places >= first[:, None]) & (places < end[:, None]))

    def _first_keys(self, queries: Integers) -> Integers:
        if self.left is None:
            return np.full(len(queries), self.begin)
        return np.maximum(queries + self._diagonal(-self.left), self.begin)

    def _ends(self, queries: Integers) -> Integers:
        if self.right is None:
            return np.full(len(queries), self.end)
        return np.minimum(queries + self._diagonal(self.right) + 1, self.end)

    def _diagonal(self, shift: int) -> int:
        """Return the bound for the first query, clipped to where it hides or shows everything."""
        return max(-self.q_len, min(self.query_offset + shift, self.kv_len))


def positions_of_entries(
    options: Mapping[str, Any], batch: tuple[int, ...], q_len: int, kv_len: int
) -> Iterator[tuple[tuple[int, ...], Positions]]:
    """Go through the entries of a batch, for options that have been checked."""

    def numbers(name: str, default: int) -> Array:
        given = options.get(name)
        return np.broadcast_to(np.asarray(default if given is None else given), batch)

    offset = options.get("query_offset", 0)
    is_end = isinstance(offset, str)
    offsets = numbers("key_lengths", kv_len) if is_end else numbers("query_offset", 0)
    lengths, padding = numbers("key_lengths", kv_len), numbers("left_padding", 0)
    window = options.get("window")
    left, right = (None, None) if window is None else window_sides(window)
    if options.get("is_causal"):
        right = 0
    for entry in np.ndindex(batch):
        offset = int(offsets[entry]) - (q_len if is_end else 0)
        begin, end = int(padding[entry]), int(lengths[entry])
        yield entry, Positions(q_len, kv_len, offset, left, right, begin, end)
