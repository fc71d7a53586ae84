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
    from regard._cache.storage.rows import Layout, Rows
    from regard._cache.storage.state import State

    Array = NDArray[Any]


class Holder(Protocol):
    """A cache, or a fork of one, which has pages."""

    state: State | None
    """None if it is closed."""

    def shared_state(self) -> State | None:
        """Return the state whose pages it owns itself: None if a ledger owns them."""


class Committed(Protocol):
    """The state in a file, which has pages too."""

    @property
    def committed(self) -> State:
        """The state that the file has."""

    @property
    def own_pages(self) -> Array:
        """The pages that hold the state itself."""

    def settle(self) -> None:
        """Finish or undo a change that was interrupted."""


class Room(Protocol):
    """Memory for pages."""

    layout: Layout
    rows: Rows
    pages: int

    def longer(self, needed: int, used: int) -> Room:
        """Return room for this many pages or more that holds what the first `used` pages hold."""

    def have_used(self, pages: int) -> None:
        """Take note of how many pages have been used."""

    def copied(self, pages: Array) -> MemoryRoom:
        """Return room in memory that holds these pages, which are sorted, at the same places."""

    def is_foreign(self) -> bool:
        """Tell whether another process writes here, from which this one was forked."""

    def check_length(self) -> None:
        """Raise OSError if these are pages of a file that is shorter than it was."""

    def flush(self) -> None:
        """Wait until the disk has all that was written, where there is one."""


class Pool:
    """Pages, each with the number of table entries that refer to it.

    Several caches use one, and they may be in different threads: a change is made with `lock` held,
    because a pool that grows may move. A change begins with `begin` and ends with `end`. Where it
    is interrupted, the next one counts owners again from the states of all caches: nothing is lost,
    and nothing is given back twice.
    """

    def __init__(self, geometry: Geometry, room: Room) -> None:
        self.geometry = geometry
        self.room = room
        self.lock = Lock()
        self.members: WeakSet[Holder] = WeakSet()
        self.ledger: Committed | None = None  # of a file that has not been closed
        self.has_lost_a_member = False  # to garbage collection, which may come at any moment
        self._owners = np.zeros(0, np.int32)
        self._free: list[int] = []
        self._used = 0
        self._is_counted = True
        _pools.add(self)

    @property
    def used(self) -> int:
        """How many pages have been used so far, which later ones use again."""
        return self._used

    def begin(self) -> None:
        """Prepare for a change."""
        if self.room.is_foreign():
            self._leave_room()
        if not self._is_counted or self.has_lost_a_member:
            self.has_lost_a_member = False
            self._is_counted = False
            self._count()
        self._is_counted = False

    def end(self) -> None:
        """Say that the change is complete."""
        self._is_counted = True

    def reserve(self, pages: int) -> None:
        """Have room for this many pages, which are not taken yet."""
        if pages > self.room.pages:
            self.room = self.room.longer(pages, self._used)

    def claim(self, used: int) -> None:
        """Count the owners of pages in a file that has been opened."""
        self._used = used
        self._is_counted = False

    def take(self, count: int) -> list[int]:
        """Return this many pages, each with one owner."""
        again = min(count, len(self._free))
        fresh = self._take_new(count - again)
        # In order: what follows one another is written and read at once.
        pages = sorted(self._free[len(self._free) - again :]) + list(fresh)
        del self._free[len(self._free) - again :]
        self._owners[pages] = 1
        return pages

    def take_side_by_side(self, count: int) -> range:
        """Return this many pages that follow one another, each with one owner."""
        pages = self._take_new(count)
        self._owners[pages.start : pages.stop] = 1
        return pages

    def _take_new(self, count: int) -> range:
        """Return pages that have never been used, without an owner."""
        end = self._used + count
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
        self.room.have_used(end)
        return pages

    def share(self, pages: Array) -> None:
        """Add an owner to each page, as often as it occurs."""
        np.add.at(self._owners, pages, 1)

    def give_back(self, pages: Array) -> None:
        """Take an owner from each page, as often as it occurs. What has none left is free."""
        if pages.size:
            np.subtract.at(self._owners, pages, 1)
            self._free += np.unique(pages[self._owners[pages] == 0]).tolist()

    def owners(self, pages: Any) -> Any:
        """Return how many table entries refer to each of these pages."""
        return self._owners[pages]

    def _count(self) -> None:
        """Count owners from what all caches hold."""
        if self.ledger is not None:
            self.ledger.settle()
        pages = self._held_pages()
        owners = np.bincount(pages, minlength=self._used).astype(np.int32)
        # From the last to the first, so that the first is taken first.
        self._free = np.flatnonzero(owners == 0)[::-1].tolist()
        self._owners = owners

    def _held_pages(self) -> Array:
        """Return the pages of all caches and of the ledger, as often as they occur."""
        states = [state for member in list(self.members) if (state := member.shared_state())]
        found = [np.zeros(0, np.int32), *(state.held_pages(self.geometry) for state in states)]
        if self.ledger is not None:
            found += [self.ledger.committed.held_pages(self.geometry), self.ledger.own_pages]
        return np.concatenate(found)

    def _leave_room(self) -> None:
        """Copy to memory what all caches hold, in a child of the process that writes to a file."""
        states = [state for member in list(self.members) if (state := member.state)]
        found = [np.zeros(0, np.int32), *(state.held_pages(self.geometry) for state in states)]
        self.room = self.room.copied(np.unique(np.concatenate(found)))
        self.ledger = None
        self._is_counted = False


_pools: WeakSet[Pool] = WeakSet()


def _unlock_all() -> None:
    """Forget, in a forked child, which locks threads of the parent were holding."""
    for pool in list(_pools):
        pool.lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_all)
