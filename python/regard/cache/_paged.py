"""What a cache in pages holds at the moment: a table of pages for each entry."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.cache._memory_pool import MemoryPool
from regard.cache._page_table import MemoryTable
from regard.cache._quantise import quantised
from regard.cache._rows import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from regard.cache._geometry import Geometry
    from regard.cache._page_table import PageTable
    from regard.cache._pool import Pool

    Array = NDArray[Any]


class PagedContent:
    """Tokens in pages of a pool. Position p of an entry lies in the page that its table says.

    Forks and entries share pages, full ones for good. The last page of an entry, where it is not
    full, is copied when the entry is appended to and others have the page too.
    """

    def __init__(self, geometry: Geometry, pool: Pool, table: PageTable, lengths: Array) -> None:
        assert geometry.page_size is not None
        self.geometry = geometry
        self.page_size = geometry.page_size
        # A file's table is its maker's; forks have their own, in memory.
        self._owns_file = pool.is_in_file
        self.pool = pool
        self._table = table
        self._set_lengths(lengths)

    @classmethod
    def in_memory(cls, geometry: Geometry) -> PagedContent:
        """Return a content without tokens."""
        table = MemoryTable(np.zeros((geometry.batch, 0), np.int32))
        return cls(geometry, MemoryPool(geometry), table, np.zeros(geometry.batch, np.int64))

    def _set_lengths(self, lengths: Array) -> None:
        self.lengths = lengths
        self.longest = int(lengths.max())
        self.is_uniform = int(lengths.min()) == self.longest

    @property
    def nbytes(self) -> int:
        """Bytes of the pool's pages and of the table."""
        return self.pool.nbytes + self._table.nbytes

    @property
    def is_writable(self) -> bool:
        """Whether it may be changed: forks of what may not be are their own once they change."""
        return self.pool.is_writable or not self._owns_file

    @property
    def table(self) -> Array:
        """Pages of each entry, shape (batch, pages of the longest); those behind its own are 0."""
        return self._table.pages[:, : self._pages_for(self.longest)]

    def _pages_for(self, length: Any) -> Any:
        return (length + self.page_size - 1) // self.page_size

    def append(self, keys: Array, values: Array, counts: Array) -> None:
        """Store the first `counts` of the new tokens."""
        after = self.lengths + counts
        self.geometry.check_capacity(after, counts)
        rows = Rows(keys, values)
        if self.geometry.is_quantised:
            rows = quantised(keys, values, counts)
        if not self.pool.is_writable:
            self._leave_file()
        with self.pool.lock:
            self._extend(self.lengths.tolist(), after.tolist())
            try:
                self._write(rows, after)
                self._table.commit(after)
            except BaseException:
                behind = self._pages(self._pages_for(self.lengths), self._pages_for(after))
                self.pool.give_back(behind)
                raise
        self._set_lengths(after)

    def _extend(self, lengths: list[int], after: list[int]) -> None:
        """Put pages for the new tokens into the table, and copies in place of shared ones."""
        copies: list[tuple[int, int, int]] = []
        fresh: list[tuple[int, int]] = []
        leaving: dict[int, int] = {}
        for entry, (start, stop) in enumerate(zip(lengths, after, strict=True)):
            column, filled = divmod(start, self.page_size)
            if filled and start < stop:
                page = int(self._table.pages[entry, column])
                # Of several entries with one page, the last that leaves may keep it.
                if self.pool.owners(page) - leaving.get(page, 0) > 1:
                    leaving[page] = leaving.get(page, 0) + 1
                    copies.append((entry, column, filled))
            for column in range(self._pages_for(start), self._pages_for(stop)):
                fresh.append((entry, column))
        if not copies and not fresh:
            return
        table = self._table.pages
        (batch, room), columns = table.shape, self._pages_for(max(after))
        if columns > room:
            wider = np.zeros((batch, max(columns, 2 * room)), np.int32)
            wider[:, :room] = table
            self._table.replace(wider, self.lengths)
        pages = iter(self.pool.take(len(copies) + len(fresh)))
        for entry, column, filled in copies:
            self._copy(entry, column, filled, next(pages))
        for (entry, column), page in zip(fresh, pages, strict=True):
            self._table.pages[entry, column] = page

    def _copy(self, entry: int, column: int, filled: int, page: int) -> None:
        """Put a page with the same beginning in another's place."""
        table, rows = self._table.pages, self.pool.rows
        old = table[entry, column : column + 1].copy()
        rows.put(np.s_[page, :, :filled], rows.part(np.s_[old[0], :, :filled]))
        table[entry, column] = page
        self.pool.give_back(old)

    def _write(self, rows: Rows, after: Array) -> None:
        if rows.key.shape[2] == 1:
            entries = np.flatnonzero(after > self.lengths)
            column, slot = np.divmod(self.lengths[entries], self.page_size)
            where = np.s_[self._table.pages[entries, column], :, slot]
            self.pool.rows.put_at(where, rows.part(np.s_[entries, :, 0]))
            return
        table = self._table.pages
        for entry, (start, stop) in enumerate(zip(self.lengths, after, strict=True)):
            self._write_entry(rows.part(entry), table[entry], int(start), int(stop))

    def _write_entry(self, new: Rows, table: Array, start: int, stop: int) -> None:
        """Write to the rest of a page, to whole pages at once, and to the beginning of one."""
        size, position = self.page_size, start
        while position < stop:
            column, slot = divmod(position, size)
            whole = (stop - position) // size if slot == 0 else 0
            count = whole * size or min(size - slot, stop - position)
            given = new.part(np.s_[:, position - start : position - start + count])
            if whole:
                parts = Rows(*(_as_pages(a, whole) for a in given.arrays))
                pages = table[column : column + whole].tolist()
                for run in _consecutive(pages):
                    first = pages[run.start]
                    part = parts.part(np.s_[run.start : run.stop])
                    self.pool.rows.put(np.s_[first : first + len(run)], part)
            else:
                self.pool.rows.put(np.s_[table[column], :, slot : slot + count], given)
            position += count

    def truncate(self, shorter: Array) -> None:
        """Forget the last tokens, and give their pages back."""
        behind = self._pages(self._pages_for(shorter), self._pages_for(self.lengths))
        with self.pool.lock:
            self._table.commit(shorter)
            self._set_lengths(shorter)
            self.pool.give_back(behind)

    def reorder(self, chosen: list[int]) -> None:
        """Become the chosen entries: pages are shared, and nothing is copied."""
        table, lengths = self.table[chosen], self.lengths[chosen]
        pages = _pages(table, 0, self._pages_for(lengths))
        with self.pool.lock:
            before = self._all_pages()
            self.pool.share(pages)
            try:
                self._table.replace(table, lengths)
            except BaseException:
                self.pool.give_back(pages)
                raise
            self.geometry = replace(self.geometry, batch=len(chosen))
            self._set_lengths(lengths)
            self.pool.give_back(before)

    def fork(self) -> PagedContent:
        """Return another content of the same pages."""
        fork = object.__new__(PagedContent)
        fork.__dict__.update(self.__dict__)
        fork._owns_file, fork._table = False, MemoryTable(self.table.copy())
        with self.pool.lock:
            self.pool.share(self._all_pages())
            if self.pool.is_in_file:
                self.pool.forks.add(fork)
        return fork

    def _leave_file(self) -> None:
        """Give the forks of a file's cache one pool in memory, which they share."""
        old, forks = self.pool, list(self.pool.forks)
        if not forks:
            return
        new = MemoryPool(self.geometry)
        with old.lock:
            pages = np.concatenate([fork._all_pages() for fork in forks])
            held = np.unique(pages)
            new.take(len(held))
            for run in _consecutive(held.tolist()):
                first = int(held[run.start])
                part = old.rows.part(np.s_[first : first + len(run)])
                new.rows.put(np.s_[run.start : run.stop], part)
            new.share(np.searchsorted(held, pages))
            new.give_back(np.arange(len(held)))
            for fork in forks:
                table = np.searchsorted(held, fork.table).astype(np.int32)
                fork.pool, fork._table = new, MemoryTable(table)
            old.give_back(pages)
            old.forks.clear()

    def flush(self) -> None:
        """Wait until all is safe."""
        if self._owns_file:
            self.pool.flush()

    def close(self) -> None:
        """Give all pages back, or let go of the file."""
        if self._owns_file:
            self._leave_file()
            self.pool.close()
        else:
            with self.pool.lock:
                self.pool.give_back(self._all_pages())
            self.pool.forks.discard(self)
        self._set_lengths(np.zeros_like(self.lengths))

    def __del__(self) -> None:
        # No lock: this may run while somebody has it. A file's pages are those of its table.
        if getattr(self, "longest", 0) and not self._owns_file:
            self.pool.dropped.append(self._all_pages())

    def _all_pages(self) -> Array:
        return self._pages(0, self._pages_for(self.lengths))

    def _pages(self, start: Any, stop: Array) -> Array:
        return _pages(self._table.pages, start, stop)


def _pages(table: Array, start: Any, stop: Array) -> Array:
    """Return the pages in each entry's columns from `start` to `stop`."""
    table = table[:, : stop.max()]
    columns, lower = np.arange(table.shape[1]), np.broadcast_to(start, stop.shape)
    return table[(columns >= lower[:, None]) & (columns < stop[:, None])]


def _as_pages(rows: Array, count: int) -> Array:
    """Return rows of all heads, (kv_heads, slots, ...), as so many pages."""
    heads, slots, *dim = rows.shape
    return rows.reshape(heads, count, slots // count, *dim).swapaxes(0, 1)


def _consecutive(pages: list[int]) -> Iterator[range]:
    """Yield ranges of indices whose pages follow one another."""
    start = 0
    for index in range(1, len(pages) + 1):
        if index == len(pages) or pages[index] != pages[index - 1] + 1:
            yield range(start, index)
            start = index
