"""Pages that caches take, share and give back.

A pool is one array for the kernels, and must grow without a copy. So it is an array of as many
pages as the machine's memory can hold: address space costs nothing, and the system brings memory to
what is touched, so that the next page that was never used is always at hand and nothing ever moves.
A pool in slabs would need a second table, and one that doubles a copy of everything and, meanwhile,
room for both. Where address space is not free, because the system counts it as memory
(``vm.overcommit_memory=2``) or limits it (``ulimit -v``), or where other pools have taken it, pools
do double.
"""

from __future__ import annotations

import math
import mmap
import os
import resource
from collections import deque
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.cache._rows import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard.cache._geometry import Geometry

    Array = NDArray[Any]

_MOST = 2**31 - 1  # tables are of 32 bits
# Without it, what is mapped counts as memory that a forked child may need, and fork fails.
# Python names it from 3.13 on; this is Linux's number on x86-64 and AArch64.
_WITHOUT_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
# Reading huge pages takes a sixth less time. The last one of an array may be nearly empty, so they
# are asked for once an array fills this many.
_LEAST_HUGE = 4


class Pool:
    """Pages of one geometry, each with the number of table entries that refer to it.

    Several caches use one, and they may be in different threads: whoever changes something, a page
    that is theirs alone included, holds `lock`, because a pool that doubles moves.
    """

    def __init__(self, geometry: Geometry) -> None:
        assert geometry.page_size is not None
        self._geometry, self._page_size = geometry, geometry.page_size
        self.rows = Rows.made(geometry, 0, geometry.page_size, np.empty)
        self.lock = Lock()
        # What garbage collection gives back, which may come at any moment, also while we are at it.
        self.dropped: deque[Array] = deque()
        self._owners = np.zeros(0, np.int32)
        self._free: list[int] = []
        self._used = 0
        self._huge: set[int] = set()  # numbers of the arrays that lie in huge pages
        forms = Rows.forms(geometry, 1, geometry.page_size)
        self.page_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in forms)

    @property
    def nbytes(self) -> int:
        """Bytes of the pages that have been used so far, which later ones use again."""
        return self._used * self.page_bytes

    @property
    def taken(self) -> int:
        """How many pages somebody has."""
        self._collect()
        return self._used - len(self._free)

    def take(self, count: int) -> list[int]:
        """Return so many pages, each with one owner."""
        self._collect()
        fresh = max(0, count - len(self._free))
        if self._used + fresh > len(self.rows.key):
            self._extend(self._used + fresh)
        if self._used + fresh > len(self._owners):
            more = np.zeros(max(fresh, len(self._owners), 64), np.int32)
            self._owners = np.concatenate([self._owners, more])
        # In order: what is written to pages that follow one another is written at once.
        again = sorted(self._free.pop() for _ in range(count - fresh))
        pages = again + list(range(self._used, self._used + fresh))
        self._used += fresh
        self._ask_for_huge_pages()
        self._owners[pages] = 1
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

    def _extend(self, needed: int) -> None:
        """Reserve what memory can hold, or else make room for twice as many and copy."""
        room = max(needed, 2 * len(self.rows.key))
        reserve = free_address_space() // self.page_bytes
        if needed > _MOST:
            raise MemoryError(f"a pool has at most {_MOST} pages, and this one would need {needed}")
        try:
            rows = self._made(max(room, reserve))
        except MemoryError:
            rows = self._made(room)
        before, self.rows = self.rows, rows
        self._huge.clear()
        self._ask_for_huge_pages()
        rows.part(slice(0, self._used)).put(..., before.part(slice(0, self._used)))

    def _ask_for_huge_pages(self) -> None:
        for number, array in enumerate(self.rows.arrays):
            filled = self._used * array.strides[0]
            if number not in self._huge and filled >= _LEAST_HUGE * huge_page():
                self._huge.add(number)
                memory: Any = array.base
                with suppress(AttributeError, OSError):  # a system without them
                    memory.madvise(mmap.MADV_HUGEPAGE)

    def _made(self, pages: int) -> Rows:
        return Rows.made(self._geometry, min(pages, _MOST), self._page_size, _mapped)


def free_address_space() -> int:
    """Return how many bytes may be mapped and not used: as memory has, or 0 where they count."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return 0
    try:
        with open("/proc/sys/vm/overcommit_memory", "rb") as setting:
            if setting.read().strip() == b"2":
                return 0
    except OSError:
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@cache
def huge_page() -> int:
    """Return the bytes of a huge page."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "rb") as size:
            return int(size.read())
    except (OSError, ValueError):
        return 2 << 20


def _mapped(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = math.prod(shape) * dtype.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _WITHOUT_RESERVE
    try:
        return np.ndarray(shape, dtype, mmap.mmap(-1, size, flags=flags))
    except (OSError, OverflowError):
        raise MemoryError(f"no memory for {shape[0]} pages: {size} bytes") from None
