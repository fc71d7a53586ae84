"""Pages in memory.

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
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._cache.pool import MOST_PAGES, Pool
from regard._cache.rows import Rows

if TYPE_CHECKING:
    from threading import Lock

    from numpy.typing import NDArray

    from regard._cache.geometry import Geometry

    Array = NDArray[Any]

# Without it, what is mapped counts as memory that a forked child may need, and fork fails.
# Python names it from 3.13 on; this is Linux's number on x86-64 and AArch64.
_WITHOUT_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
# Reading huge pages takes a sixth less time. The last one of an array may be nearly empty, so they
# are asked for once an array fills this many.
_LEAST_HUGE = 4


class MemoryPool(Pool):
    """Pages that nobody else sees."""

    def __init__(self, geometry: Geometry, lock: Lock | None = None) -> None:
        assert geometry.page_size is not None
        super().__init__(geometry, Rows.made(geometry, 0, geometry.page_size, np.empty), lock)
        self._huge: set[int] = set()  # numbers of the arrays that lie in huge pages

    def _extend(self, needed: int) -> None:
        """Reserve what memory can hold, or else make room for twice as many and copy."""
        room = max(needed, 2 * len(self.rows.key))
        reserve = free_address_space() // self.page_bytes
        try:
            rows = self._made(max(room, reserve))
        except MemoryError:
            rows = self._made(room)
        before, self.rows = self.rows, rows
        self._huge.clear()
        self._have_used_more()
        rows.part(slice(0, self._used)).put(..., before.part(slice(0, self._used)))

    def _have_used_more(self) -> None:
        """Ask for huge pages where they are worth it."""
        for number, array in enumerate(self.rows.arrays):
            filled = self._used * array.strides[0]
            if number not in self._huge and filled >= _LEAST_HUGE * huge_page():
                self._huge.add(number)
                memory: Any = array.base
                with suppress(AttributeError, OSError):  # a system without them
                    memory.madvise(mmap.MADV_HUGEPAGE)

    def let_forks_write(self) -> None:
        """They may."""

    def _made(self, pages: int) -> Rows:
        size = self.geometry.page_size
        assert size is not None
        return Rows.made(self.geometry, min(pages, MOST_PAGES), size, _mapped)


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
