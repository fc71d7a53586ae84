"""Pages that caches take, share and give back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._cache.rows import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.geometry import Geometry

    Array = NDArray[Any]

MOST_PAGES = 2**31 - 1  # tables are of 32 bits


class Pool(ABC):
    """Pages of one geometry, each with the number of table entries that refer to it.

    Several caches use one, and they may be in different threads: whoever changes something, a page
    that is theirs alone included, holds `lock`, because a pool that grows may move.
    """

    def __init__(self, geometry: Geometry, rows: Rows, lock: Lock | None = None) -> None:
        assert geometry.page_size is not None
        self.rows = rows
        self.lock = Lock() if lock is None else lock
        # What garbage collection gives back, which may come at any moment, also while we are at it.
        self.dropped: deque[Array] = deque()
        self.geometry = geometry
        self._owners = np.zeros(0, np.int32)
        self._free: list[int] = []
        self._used = 0
        forms = Rows.forms(geometry, 1, geometry.page_size)
        self.page_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in forms)

    @property
    def nbytes(self) -> int:
        """Bytes of the pages that have been used so far, which later ones use again."""
        return self._used * self.page_bytes

    def take(self, count: int) -> list[int]:
        """Return so many pages, each with one owner."""
        self._collect()
        fresh = self._take_new(max(0, count - len(self._free)))
        # In order: what is written to pages that follow one another is written at once.
        again = sorted(self._free.pop() for _ in range(count - len(fresh)))
        pages = again + list(fresh)
        self._owners[pages] = 1
        return pages

    def take_side_by_side(self, count: int) -> range:
        """Return so many pages that follow one another, each with one owner."""
        if count == 1:
            page = self.take(1)[0]
            return range(page, page + 1)
        pages = self._take_new(count)
        self._owners[pages] = 1
        return pages

    def _take_new(self, count: int) -> range:
        """Return pages that nobody has used, without an owner."""
        end = self._used + count
        if end > len(self.rows.key):
            if end > MOST_PAGES:
                raise MemoryError(
                    f"a pool has at most {MOST_PAGES} pages, and this one would need {end}"
                )
            self._extend(end)
        if end > len(self._owners):
            more = np.zeros(max(count, len(self._owners), 64), np.int32)
            self._owners = np.concatenate([self._owners, more])
        pages = range(self._used, end)
        self._used = end
        self._have_used_more()
        return pages

    def share(self, pages: Array) -> None:
        """Add an owner to each page, as often as it occurs."""
        np.add.at(self._owners, pages, 1)

    def give_back(self, pages: Array) -> None:
        """Take an owner from each page, as often as it occurs. What has none left is free."""
        np.subtract.at(self._owners, pages, 1)
        self._free += np.unique(pages[self._owners[pages] == 0]).tolist()

    def owners(self, page: int) -> int:
        """Return how many refer to a page."""
        return int(self._owners[page])

    def _collect(self) -> None:
        while self.dropped:
            self.give_back(self.dropped.popleft())

    @abstractmethod
    def _extend(self, needed: int) -> None:
        """Let `rows` have so many pages or more, with what the first ones hold."""

    @abstractmethod
    def _have_used_more(self) -> None:
        """Look at how many pages have been used."""

    @abstractmethod
    def let_forks_write(self) -> None:
        """Make ready for appends of forks, which may have another pool afterwards."""
