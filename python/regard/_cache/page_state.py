"""What a cache in pages is at the moment, in one piece: it changes at once or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self
from weakref import WeakSet

import numpy as np

from regard._cache.memory_pool import MemoryPool
from regard._cache.page_table import MemoryTable, pages_between

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from regard._cache.file_pool import FilePool
    from regard._cache.geometry import Geometry
    from regard._cache.page_table import PageTable
    from regard._cache.paged import PagedContent
    from regard._cache.pool import Pool
    from regard._cache.rows import Rows

    Array = NDArray[Any]


class Forks:
    """Forks of a file's cache, which share its pages until they leave it together.

    Whoever makes them leave writes to none of them: each follows by itself.
    """

    def __init__(self) -> None:
        self.members: WeakSet[PagedContent] = WeakSet()
        # Where they have gone, and which page of the file became page 0, 1, 2, ... there.
        self.left: tuple[MemoryPool, Array] | None = None


class PageState(NamedTuple):
    """The entries of a cache."""

    geometry: Geometry
    page_size: int
    pool: Pool
    table: PageTable
    lengths: Array
    longest: int
    is_uniform: bool
    forks: Forks | None  # those that this is one of

    @classmethod
    def of(
        cls,
        geometry: Geometry,
        pool: Pool,
        table: PageTable,
        lengths: Array,
        forks: Forks | None = None,
    ) -> Self:
        """Return the state of entries that have these lengths."""
        size, longest = geometry.page_size, int(lengths.max())
        assert size is not None
        is_uniform = len(lengths) == 1 or int(lengths.min()) == longest
        return cls(geometry, size, pool, table, lengths, longest, is_uniform, forks)

    def with_lengths(self, lengths: Array) -> PageState:
        """Return the same of other lengths."""
        return PageState.of(self.geometry, self.pool, self.table, lengths, self.forks)

    def with_table(self, table: PageTable) -> PageState:
        """Return the same by another table."""
        return self._replace(table=table)

    @property
    def rows(self) -> Rows:
        """The rows of all pages."""
        return self.pool.rows

    @property
    def pages(self) -> Array:
        """Pages of each entry, shape (batch, those of the longest). Behind its own are any."""
        return self.table.pages[:, : self.pages_for(self.longest)]

    def pages_for(self, length: Any) -> Any:
        """Return how many pages so many tokens take."""
        return -(-length // self.page_size)

    def all_pages(self) -> Array:
        """Return the pages of all entries, one behind another."""
        return pages_between(self.table.pages, 0, self.pages_for(self.lengths))

    def here(self) -> PageState:
        """Return the same where it lies now: in memory, if the forks have left the file."""
        if self.forks is None or self.forks.left is None:
            return self
        pool, held = self.forks.left
        table = MemoryTable(np.searchsorted(held, self.pages).astype(np.int32))
        return self._replace(pool=pool, table=table, forks=None)


def leave_file(pool: FilePool) -> None:
    """Copy the pages of a file's forks to one pool in memory, which they share from now on."""
    with pool.lock:
        forks = pool.forks
        members = list(forks.members)  # which keeps them alive
        if forks.left is not None or not members:
            return
        states = [state for member in members if (state := member.state_in_file()) is not None]
        none = np.zeros(0, np.int32)
        pages = np.concatenate([none, *(state.all_pages() for state in states)])
        held = np.unique(pages)
        new = MemoryPool(pool.geometry, pool.lock)
        new.take(len(held))
        for run in consecutive(held.tolist()):
            first = int(held[run.start])
            part = pool.rows.part(np.s_[first : first + len(run)])
            new.rows.put(np.s_[run.start : run.stop], part)
        new.share(np.searchsorted(held, pages))
        new.give_back(np.arange(len(held)))
        forks.left = new, held
        pool.give_back(pages)


def consecutive(pages: list[int]) -> Iterator[range]:
    """Yield ranges of indices whose pages follow one another."""
    start = 0
    for index in range(1, len(pages) + 1):
        if index == len(pages) or pages[index] != pages[index - 1] + 1:
            yield range(start, index)
            start = index
