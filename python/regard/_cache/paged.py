"""Tokens in pages: how they are appended, forgotten, reordered and shared."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._cache.memory_pool import MemoryPool
from regard._cache.page_state import PageState, leave_file
from regard._cache.page_table import MemoryTable, pages_between
from regard._cache.page_writing import make_room, write
from regard._cache.quantise import quantised
from regard._cache.rows import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.file_pool import FilePool
    from regard._cache.geometry import Geometry
    from regard._cache.page_table import PageTable

    Array = NDArray[Any]


class PagedContent:
    """Tokens in pages of a pool. Position p of an entry lies in the page that its table says.

    Forks and entries share pages, full ones for good. The last page of an entry, where it is not
    full, is copied when the entry is appended to and others have the page too.

    Whatever stops a call, a signal included, leaves the content as it was or as it was to be. At
    most there are pages then that nobody uses.
    """

    def __init__(self, state: PageState, file: FilePool | None = None) -> None:
        # A file is its maker's; forks share its pages, and have a table of their own.
        self._file = file
        self._state = state

    @classmethod
    def in_memory(cls, geometry: Geometry) -> PagedContent:
        """Return a content without tokens."""
        table = MemoryTable(np.zeros((geometry.batch, 0), np.int32))
        lengths = np.zeros(geometry.batch, np.int64)
        return cls(PageState.of(geometry, MemoryPool(geometry), table, lengths))

    @classmethod
    def in_file(
        cls, geometry: Geometry, pool: FilePool, table: PageTable, lengths: Array
    ) -> PagedContent:
        """Return the content of a file."""
        return cls(PageState.of(geometry, pool, table, lengths), pool)

    @property
    def state(self) -> PageState:
        """What it is now. Forks that were made to leave a file follow here."""
        if self._state.forks is not None:
            self._state = self._state.here()
        return self._state

    @property
    def geometry(self) -> Geometry:
        """What does not change, and the number of entries."""
        return self._state.geometry

    @property
    def lengths(self) -> Array:
        """How long each entry is."""
        return self._state.lengths

    @property
    def longest(self) -> int:
        """How long the longest entry is."""
        return self._state.longest

    @property
    def nbytes(self) -> int:
        """Bytes of the pool's pages and of the table."""
        state = self.state
        return state.pool.nbytes + state.table.nbytes

    @property
    def is_writable(self) -> bool:
        """Whether it may be changed: forks of what may not be are their own once they change."""
        return self._file is None or self._file.is_writable

    def append(self, keys: Array, values: Array, counts: Array) -> None:
        """Store the first `counts` of the new tokens."""
        geometry, after = self._state.geometry, self._state.lengths + counts
        geometry.check_capacity(after, counts)
        rows = quantised(keys, values, counts) if geometry.is_quantised else Rows(keys, values)
        self.state.pool.let_forks_write()
        with self.state.pool.lock:
            longer = self._widened(self.state.with_lengths(after))
            state = self._state
            taken: list[int] = []
            try:
                make_room(state, after, taken)
                write(state, rows, after)
                state.table.commit(after)
                self._state = longer
            except BaseException:
                self._state = state
                state.table.commit(state.lengths)
                unused = np.setdiff1d(np.array(taken, np.int32), state.all_pages())
                state.pool.give_back(unused)
                raise

    def _widened(self, longer: PageState) -> PageState:
        """Return the same by a table with columns for all tokens, and have such a table."""
        pages, columns = longer.table.pages, longer.pages_for(longer.longest)
        if columns <= pages.shape[1]:
            return longer
        batch, room = pages.shape
        wider = np.zeros((batch, max(columns, 2 * room)), np.int32)
        wider[:, :room] = pages
        state = self.state
        self._replace_table(state, wider, state)
        return longer.with_table(self._state.table)

    def _replace_table(self, before: PageState, pages: Array, after: PageState) -> None:
        """Become `after`, by a table of these pages."""
        try:
            table = before.table.replaced(pages, after.lengths)
            self._state = after.with_table(table)
        except BaseException:
            self._state = before
            before.table.publish()
            raise

    def truncate(self, shorter: Array) -> None:
        """Forget the last tokens, and give their pages back."""
        with self.state.pool.lock:
            state = self.state
            start, stop = (state.pages_for(lengths) for lengths in (shorter, state.lengths))
            behind = pages_between(state.table.pages, start, stop)
            try:
                state.table.commit(shorter)
                self._state = state.with_lengths(shorter)
            except BaseException:
                self._state = state
                state.table.commit(state.lengths)
                raise
            state.pool.give_back(behind)

    def reorder(self, chosen: list[int]) -> None:
        """Become the chosen entries: pages are shared, and nothing is copied."""
        with self.state.pool.lock:
            state = self.state
            pages, lengths = state.pages[chosen], state.lengths[chosen]
            geometry = replace(state.geometry, batch=len(chosen))
            after = PageState.of(geometry, state.pool, state.table, lengths, state.forks)
            shared = pages_between(pages, 0, state.pages_for(lengths))
            state.pool.share(shared)
            try:
                self._replace_table(state, pages, after)
            except BaseException:
                state.pool.give_back(shared)
                raise
            state.pool.give_back(state.all_pages())

    def fork(self) -> PagedContent:
        """Return another content of the same pages."""
        fork = object.__new__(PagedContent)
        fork._file = None
        with self.state.pool.lock:
            state = self.state
            forks = state.forks if self._file is None else self._file.newest_forks()
            copy = state._replace(table=MemoryTable(state.pages.copy()), forks=forks)
            if forks is not None:
                forks.members.add(fork)
            # In this order: what is stopped in between are pages that nobody uses, and no more.
            state.pool.share(copy.all_pages())
            fork._state = copy
        return fork

    def state_in_file(self) -> PageState | None:
        """Return the state of a fork that has not left its file, or none if it is half made."""
        return getattr(self, "_state", None)

    def flush(self) -> None:
        """Wait until all is safe."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Give all pages back, or let go of the file."""
        if self._file is not None:
            leave_file(self._file)
            self._file.close()
            return
        state = self.state
        pages, empty = state.all_pages(), state.with_lengths(np.zeros_like(state.lengths))
        self._state = empty
        state.pool.dropped.append(pages)

    def __del__(self) -> None:
        # No lock: this may run while somebody has it. A file's pages are those of its table, and
        # what is half made has none.
        if hasattr(self, "_state") and self._file is None and self.longest:
            state = self.state
            state.pool.dropped.append(state.all_pages())
