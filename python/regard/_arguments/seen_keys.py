"""Find the keys that the queries of a sparse mask see, to leave out chunks of other keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.masks import is_sparse

if TYPE_CHECKING:
    from regard._arguments.masks import Masks


class SeenKeys:
    """The keys that any query of a sparse mask sees.

    If a query sees one key of a partial block, all keys of the block count as seen.

    Attributes
    ----------
    first, end : int
        The first of these keys, and the end after the last one. Both are 0 if there is none.
    """

    __slots__ = ("_begins", "_ends", "end", "first")

    def __init__(self, mask: Any) -> None:
        rows = mask._sparse_rows().distinct()
        begin, end = rows.row_range()
        start = rows.starts[..., begin:end].ravel()
        count = rows.starts[..., begin + 1 : end + 1].ravel() - start
        which = np.repeat(start - np.cumsum(count) + count, count) + np.arange(count.sum())
        begins = np.maximum(rows.spans[which, 0] - rows.first_key, 0)
        ends = np.minimum(rows.spans[which, 1] - rows.first_key, mask.shape[-1])
        order = np.argsort(begins, kind="stable")
        order = order[(begins < ends)[order]]
        self._begins, self._ends = begins[order], np.maximum.accumulate(ends[order])
        self.first, self.end = int(self._begins[:1].sum()), int(self._ends[-1:].sum())

    @classmethod
    def of(cls, masks: Masks) -> SeenKeys | None:
        """Return the keys that a sparse mask shows, or None if the bool mask is not sparse."""
        return cls(masks.shown) if is_sparse(masks.shown) else None

    def any(self, start: int, stop: int) -> bool:
        """Return whether a query sees one of the keys from `start` to before `stop`."""
        before = int(np.searchsorted(self._begins, stop))
        return before > 0 and bool(self._ends[before - 1] > start)
