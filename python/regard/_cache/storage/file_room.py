"""Pages in a memory-mapped file.

The pages follow the header and the two areas of the ledger. The file grows at its end, and its
content never moves. `ledger.py` records the owners of the pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard import _core
from regard._cache.storage.geometry import MOST_PAGES
from regard._cache.storage.header import first_page
from regard._cache.storage.memory_room import copy_of
from regard._cache.storage.rows import Rows
from regard._cache.storage.system import free_address_space

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.storage.locked_file import LockedFile
    from regard._cache.storage.memory_room import MemoryRoom
    from regard._cache.storage.rows import PageLayout

    Array = NDArray[Any]


class FileRoom:
    """Pages of a file that is open for writing."""

    def __init__(self, file: LockedFile, layout: PageLayout) -> None:
        self.file = file
        self.layout = layout
        self.memory: Any = file.mapped()
        self.pages = self.pages_of_file = _whole_pages(len(self.memory), layout)
        self.rows = Rows(layout, self.memory, first_page(layout), self.pages)

    def longer(self, needed: int, used: int) -> FileRoom:
        """Extend the file by a quarter, or only by the needed pages if the disk is too full."""
        generous = min(max(needed, used + used // 4), MOST_PAGES)
        try:
            self.file.allocate(end_of(generous, self.layout))
        except OSError:
            self.file.allocate(end_of(needed, self.layout))
        # Readers of the shorter mapping may continue: both mappings show the same bytes.
        return FileRoom(self.file, self.layout)

    def record_used(self, pages: int) -> None:
        """Do nothing: files do not use huge pages."""

    def copied(self, pages: Array) -> MemoryRoom:
        """Return room in memory with a copy of these pages at the same places."""
        return copy_of(self.layout, self.rows, pages)

    def is_foreign(self) -> bool:
        """Return whether the parent process, from which this one was forked, writes here."""
        return self.file.is_foreign

    def check_length(self) -> None:
        """Raise OSError if the file is shorter than its mapping."""
        self.file.check_length(self.memory, len(self.memory))

    def flush(self) -> None:
        """Wait until all written data and the size of the file are on the disk."""
        self.memory.flush()
        self.file.sync()


class FileCopyRoom:
    """Pages of a file that is open for reading, and room after them.

    Forks write here. Their changes stay in memory, one system page at a time, and all other data
    is read from the file.
    """

    def __init__(self, file: LockedFile, layout: PageLayout) -> None:
        self.file = file
        self.layout = layout
        self._size = size = file.size
        self._first = file.first_page()  # reports the file's length even after the file is closed
        self.memory = _mapped(file, size, free_address_space())
        self.pages = min(_whole_pages(len(self.memory), layout), MOST_PAGES)
        self.pages_of_file = _whole_pages(size, layout)
        self.rows = Rows(layout, self.memory, first_page(layout), self.pages)

    def longer(self, needed: int, used: int) -> MemoryRoom:
        """Return room in memory with a copy of the first `used` pages."""
        room = copy_of(self.layout, self.rows, np.arange(used))
        return room if room.pages >= needed else room.longer(needed, used)

    def record_used(self, pages: int) -> None:
        """Do nothing: files do not use huge pages."""

    def copied(self, pages: Array) -> MemoryRoom:
        """Return room in memory with a copy of these pages at the same places."""
        return copy_of(self.layout, self.rows, pages)

    def is_foreign(self) -> bool:
        """Return False: a forked child has its own copy."""
        return False

    def check_length(self) -> None:
        """Raise OSError if the file is shorter than its mapping."""
        self.file.check_length(self._first, self._size)

    def flush(self) -> None:
        """Do nothing: data that is written here never reaches the file."""


def end_of(pages: int, layout: PageLayout) -> int:
    """Return the size of a file with this many pages."""
    return first_page(layout) + pages * layout.stride


def _whole_pages(size: int, layout: PageLayout) -> int:
    # A process that died while the file grew may have left a partial page.
    return min(max(size - first_page(layout), 0) // layout.stride, MOST_PAGES)


def _mapped(file: LockedFile, size: int, reserve: int) -> Array:
    try:
        return _core.map_copy(file.descriptor, size, size + reserve)
    except OSError:  # other mappings use the address space
        try:
            return _core.map_copy(file.descriptor, size, size)
        except OSError as error:
            raise file.cannot_map(error, size) from None
