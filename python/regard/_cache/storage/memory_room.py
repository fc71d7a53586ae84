"""Pages in memory.

The kernels find a page by its number from one beginning, so that a pool is one piece of memory, and
it must grow without a copy. So it is a piece as large as the machine's memory: address space costs
nothing, and the system brings memory to what is touched, so that the next page that was never used
is always at hand and nothing ever moves. A pool in slabs would need a second table, and one that
doubles a copy of everything and, meanwhile, room for both. Where address space is not free, because
the system counts it as memory (``vm.overcommit_memory=2``) or limits it (``ulimit -v``), or where
other pools have taken it, pools do double.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from regard._cache.storage.geometry import MOST_PAGES
from regard._cache.storage.rows import Rows
from regard._cache.storage.system import ask_for_huge_pages, free_address_space, mapped_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.storage.rows import Layout

    Array = NDArray[Any]


class MemoryRoom:
    """Pages that no other process sees."""

    def __init__(self, layout: Layout, pages: int) -> None:
        self.pages = pages
        self.layout = layout
        self._memory: Any = _mapped(pages * layout.stride) if pages else None
        self._is_huge = False
        self.rows = Rows(layout, self._memory, 0, pages)

    @classmethod
    def reserved(cls, layout: Layout, needed: int, generous: int) -> MemoryRoom:
        """Return room for what memory can hold, or else for a generous number of pages."""
        room = min(max(needed, generous), MOST_PAGES)
        reserve = min(free_address_space() // layout.stride, MOST_PAGES)
        if reserve > room:
            with suppress(MemoryError):
                return cls(layout, reserve)
        return cls(layout, room)

    def longer(self, needed: int, used: int) -> MemoryRoom:
        """Return room for this many pages or more that holds what the first `used` pages hold."""
        room = MemoryRoom.reserved(self.layout, needed, 2 * self.pages)
        room.have_used(used)
        there = min(used, self.pages)  # the others held nothing that was worth copying
        for array, old in zip(room.rows.arrays, self.rows.arrays, strict=True):
            array[:there] = old[:there]
        return room

    def have_used(self, pages: int) -> None:
        """Ask for huge pages of the system where they are worth it: reading them takes less time.

        The last one may be nearly empty, so they are asked for once one can be filled.
        """
        if not self._is_huge and pages * self.layout.stride >= huge_page():
            self._is_huge = True
            ask_for_huge_pages(self._memory)

    def copied(self, pages: Array) -> MemoryRoom:
        """Return room that holds these pages at the same places."""
        return copy_of(self.layout, self.rows, pages)

    def is_foreign(self) -> bool:
        """Tell that no other process writes here: a forked child has a copy of its own."""
        return False

    def check_length(self) -> None:
        """Do nothing: memory does not become shorter."""

    def flush(self) -> None:
        """Do nothing: there is no disk to wait for."""


def copy_of(layout: Layout, rows: Rows, pages: Array) -> MemoryRoom:
    """Return room in memory that holds these pages, which are sorted, at the same places."""
    if not pages.size:
        return MemoryRoom(layout, 0)
    room = MemoryRoom.reserved(layout, int(pages[-1]) + 1, 0)
    room.rows.copy_pages(rows, pages)
    return room


@cache
def huge_page() -> int:
    """Return the bytes of a huge page."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "rb") as size:
            return int(size.read())
    except (OSError, ValueError):
        return 2 << 20


def _mapped(size: int) -> Any:
    try:
        return mapped_memory(size)
    except (OSError, OverflowError):
        raise MemoryError(f"no memory for {size} bytes of keys and values") from None
