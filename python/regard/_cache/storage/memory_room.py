"""Pages in memory.

The kernels find a page by its number, relative to one base address. A pool is therefore one block
of memory, which must grow without a copy. Its block is as large as the machine's memory: address
space costs nothing, and the system provides memory only for touched pages. The next unused page is
always available, and nothing ever moves. A pool in slabs would need a second table. A pool that
doubles would need a copy of everything and, during the copy, room for both blocks. Pools do double
if address space is not free, because the system counts it as memory (``vm.overcommit_memory=2``) or
limits it (``ulimit -v``), or if other pools use it.
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

    from regard._cache.storage.rows import PageLayout

    Array = NDArray[Any]


class MemoryRoom:
    """Pages in private memory of the process."""

    def __init__(self, layout: PageLayout, pages: int) -> None:
        self.pages = pages
        self.layout = layout
        self._memory: Any = _mapped(pages * layout.stride) if pages else None
        self._is_huge = False
        self.rows = Rows(layout, self._memory, 0, pages)

    @classmethod
    def reserved(cls, layout: PageLayout, needed: int, generous: int) -> MemoryRoom:
        """Return room for all pages that fit in memory, or else for a generous number of pages."""
        room = min(max(needed, generous), MOST_PAGES)
        reserve = min(free_address_space() // layout.stride, MOST_PAGES)
        if reserve > room:
            with suppress(MemoryError):
                return cls(layout, reserve)
        return cls(layout, room)

    def longer(self, needed: int, used: int) -> MemoryRoom:
        """Return room for `needed` pages or more, with a copy of the first `used` pages."""
        room = MemoryRoom.reserved(self.layout, needed, 2 * self.pages)
        room.record_used(used)
        there = min(used, self.pages)  # the other pages have no content
        for array, old in zip(room.rows.arrays, self.rows.arrays, strict=True):
            array[:there] = old[:there]
        return room

    def record_used(self, pages: int) -> None:
        """Request huge pages from the system, which are faster to read, once one can be filled.

        The last huge page may be nearly empty, so a smaller pool does not request them.
        """
        if not self._is_huge and pages * self.layout.stride >= huge_page():
            self._is_huge = True
            ask_for_huge_pages(self._memory)

    def copied(self, pages: Array) -> MemoryRoom:
        """Return room with a copy of these pages at the same places."""
        return copy_of(self.layout, self.rows, pages)

    def is_foreign(self) -> bool:
        """Return False: a forked child has its own copy."""
        return False

    def check_length(self) -> None:
        """Do nothing: memory does not shrink."""

    def flush(self) -> None:
        """Do nothing: there is no disk to wait for."""


def copy_of(layout: PageLayout, rows: Rows, pages: Array) -> MemoryRoom:
    """Return room in memory with a copy of these sorted pages at the same places."""
    if not pages.size:
        return MemoryRoom(layout, 0)
    room = MemoryRoom.reserved(layout, int(pages[-1]) + 1, 0)
    room.rows.copy_pages(rows, pages)
    return room


@cache
def huge_page() -> int:
    """Return the number of bytes in a huge page."""
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
