"""Pages that caches take, share and give back."""

from __future__ import annotations

import os
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

import numpy as np

from regard._cache.storage.geometry import MOST_PAGES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.storage.geometry import Geometry
    from regard._cache.storage.memory_room import MemoryRoom
    from regard._cache.storage.rows import PageLayout, Rows
    from regard._cache.storage.state import State

    Array = NDArray[Any]


class Holder(Protocol):
    """A cache or a fork, which has pages."""

    state: State | None
    """None if it is closed."""

    def owned_pages(self) -> list[Array]:
        """Return the pages that this holder owns, with repetitions; a ledger may own others."""

    def held_pages(self) -> list[Array]:
        """Return all pages that this holder needs, with repetitions."""


class Committed(Protocol):
    """The state in a file, which also has pages."""

    @property
    def committed(self) -> State:
        """The state in the file."""

    @property
    def own_pages(self) -> Array:
        """The pages that contain the state itself."""

    def settle(self) -> None:
        """Finish or undo a change that was interrupted."""


class Room(Protocol):
    """Memory for pages."""

    layout: PageLayout
    rows: Rows
    pages: int

    def longer(self, needed: int, used: int) -> Room:
        """Return room for `needed` pages or more, with the content of the first `used` pages."""

    def record_used(self, pages: int) -> None:
        """Record the number of pages that have been used."""

    def copied(self, pages: Array) -> MemoryRoom:
        """Return room in memory with a copy of these sorted pages at the same places."""

    def is_foreign(self) -> bool:
        """Return whether the parent process, from which this one was forked, writes here."""

    def check_length(self) -> None:
        """Raise OSError if the pages are in a file that has become shorter."""

    def flush(self) -> None:
        """Wait until all written data is on the disk, if there is one."""


class Pool:
    """Pages, each with the number of table entries that refer to it.

    Several caches may share a pool, in different threads too. Changes are made with `lock` held,
    because a pool that grows may move. A change begins with `begin` and ends with `end`. After an
    interruption, the next change counts owners again from the states of all caches: no page is
    lost, and none is given back twice.
    """

    def __init__(self, geometry: Geometry, room: Room, max_bytes: int | None = None) -> None:
        self.geometry = geometry
        self.room = room
        self.max_bytes = max_bytes
        self.lock = Lock()
        self.members: WeakSet[Holder] = WeakSet()
        self.ledger: Committed | None = None  # of an open file
        self.must_recount = False  # to garbage collection, which may come at any moment
        self._owners = np.zeros(0, np.int32)
        self._free: list[int] = []
        self._used = 0
        self._is_counted = True
        _pools.add(self)

    @property
    def used(self) -> int:
        """Number of pages used so far, including free pages for reuse."""
        return self._used

    def begin(self) -> None:
        """Prepare for a change."""
        if self.room.is_foreign():
            self._leave_room()
        if not self._is_counted or self.must_recount:
            self.must_recount = False
            self._is_counted = False
            self._count()
        self._is_counted = False

    def end(self) -> None:
        """Mark the change as complete."""
        self._is_counted = True

    def reserve(self, pages: int) -> None:
        """Provide room for this many pages without taking them."""
        self._check_budget(pages)
        if pages > self.room.pages:
            self.room = self.room.longer(pages, self._used)

    def claim(self, used: int) -> None:
        """Count the owners of pages in a file that has been opened."""
        self._used = used
        self._is_counted = False

    def take(self, count: int) -> list[int]:
        """Return `count` pages with one owner each."""
        again = min(count, len(self._free))
        fresh = self._take_new(count - again)
        # Sorted, so that consecutive pages are written and read together.
        pages = sorted(self._free[len(self._free) - again :]) + list(fresh)
        del self._free[len(self._free) - again :]
        self._owners[pages] = 1
        return pages

    def take_side_by_side(self, count: int) -> range:
        """Return `count` consecutive pages with one owner each."""
        pages = self._take_new(count)
        self._owners[pages.start : pages.stop] = 1
        return pages

    def _take_new(self, count: int) -> range:
        """Return pages that have never been used and have no owner yet."""
        end = self._used + count
        self._check_budget(end)
        if end > self.room.pages:
            if end > MOST_PAGES:
                raise MemoryError(
                    f"no memory for {end} pages: a cache and its forks have at most {MOST_PAGES}"
                )
            self.room = self.room.longer(end, self._used)
        if end > len(self._owners):
            more = np.zeros(max(count, len(self._owners), 64), np.int32)
            self._owners = np.concatenate([self._owners, more])
        pages = range(self._used, end)
        self._used = end
        self.room.record_used(end)
        return pages

    def _check_budget(self, pages: int) -> None:
        """Raise MemoryError if this many pages need more than `max_bytes`."""
        page = self.room.layout.stride
        if self.max_bytes is not None and pages * page > self.max_bytes:
            raise MemoryError(
                f"the pool of pages is full: {pages} pages of {page} bytes are more than "
                f"max_bytes={self.max_bytes}; drop or truncate texts first"
            )

    def share(self, pages: Array) -> None:
        """Add an owner to each page, once per occurrence."""
        np.add.at(self._owners, pages, 1)

    def give_back(self, pages: Array) -> None:
        """Remove an owner from each page, once per occurrence, and free pages without an owner."""
        if pages.size:
            np.subtract.at(self._owners, pages, 1)
            self._free += np.unique(pages[self._owners[pages] == 0]).tolist()

    def owners(self, pages: Any) -> Any:
        """Return the number of table entries that refer to each page."""
        return self._owners[pages]

    def _count(self) -> None:
        """Count owners from the states of all caches."""
        if self.ledger is not None:
            self.ledger.settle()
        pages = self._held_pages()
        owners = np.bincount(pages, minlength=self._used).astype(np.int32)
        # In descending order, so that the first page is taken first.
        self._free = np.flatnonzero(owners == 0)[::-1].tolist()
        self._owners = owners

    def _held_pages(self) -> Array:
        """Return the pages of all caches and of the ledger, with repetitions."""
        found = [np.zeros(0, np.int32)]
        for member in list(self.members):
            found += member.owned_pages()
        if self.ledger is not None:
            found += [self.ledger.committed.held_pages(self.geometry), self.ledger.own_pages]
        return np.concatenate(found)

    def _leave_room(self) -> None:
        """Copy the pages of all caches to memory, in a child of the process that writes a file."""
        found = [np.zeros(0, np.int32)]
        for member in list(self.members):
            found += member.held_pages()
        self.room = self.room.copied(np.unique(np.concatenate(found)))
        self.ledger = None
        self._is_counted = False


_pools: WeakSet[Pool] = WeakSet()


def _unlock_all() -> None:
    """Replace the locks in a forked child, because threads of the parent may hold them."""
    for pool in list(_pools):
        pool.lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_all)
