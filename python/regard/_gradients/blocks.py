"""Blocks of consecutive queries of one head, and the keys that they see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from regard._arguments.masks import Masks
    from regard._arguments.positions import Positions

    Array = NDArray[Any]

# The most scores in a block, few enough that several arrays of them fit in a processor's caches.
_SCORES = 1 << 18
# With more rows, more keys would be visible only to some of them, as with causality.
_ROWS = 128


class ScoreBlock(NamedTuple):
    """Some queries, a range of keys that contains all visible ones, and the visible pairs."""

    rows: slice
    keys: slice
    seen: NDArray[np.bool_] | None
    """Of shape (rows, keys); None if every row sees every key."""


def blocks_of(positions: Positions, masks: Masks) -> Iterator[ScoreBlock]:
    """Iterate over the blocks of a head, except blocks that see no key."""
    size = _rows_of_block(positions)
    for start in range(0, positions.q_len, size):
        rows = slice(start, min(start + size, positions.q_len))
        block = _block(positions, rows)
        if block is None:
            continue
        seen, shown = block.seen, masks.visible(rows, block.keys)
        if shown is not None:
            shape = rows.stop - rows.start, block.keys.stop - block.keys.start
            shown = np.broadcast_to(shown, shape)
            seen = shown if seen is None else seen & shown
        if seen is not None and seen.all():
            seen = None
        if seen is None or seen.any():
            yield block._replace(seen=seen)


def most_scores(positions: Positions) -> int:
    """Return the largest number of scores in a block, which depends only on lengths and sides."""
    rows = min(_rows_of_block(positions), positions.q_len)
    return rows * min(_kv_len(positions), _keys_of_row(positions) + rows)


def _kv_len(positions: Positions) -> int:
    assert positions.kv_len is not None
    return positions.kv_len


def _keys_of_row(positions: Positions) -> int:
    if positions.left is None or positions.right is None:
        return _kv_len(positions)
    return min(_kv_len(positions), positions.left + positions.right + 1)


def _rows_of_block(positions: Positions) -> int:
    return max(1, min(_SCORES // max(_keys_of_row(positions), 1), _ROWS))


def _block(positions: Positions, rows: slice) -> ScoreBlock | None:
    """Return the block of some rows, or None if they see no key by their positions."""
    first, end = positions.intervals(rows)
    sees_any = first < end
    if not sees_any.any():
        return None
    keys = slice(int(first[sees_any].min()), int(end[sees_any].max()))
    if first.max() <= keys.start and end.min() >= keys.stop:
        return ScoreBlock(rows, keys, None)
    places = np.arange(keys.start, keys.stop)
    return ScoreBlock(rows, keys, (places >= first[:, None]) & (places < end[:, None]))
