"""The table of pages in a file, such that whoever dies leaves the content before or after a call.

A ledger lies in pages that follow one another: two records of how long each entry is, as in a file
without pages, and at the next multiple of 64 bytes the table, of 32-bit integers, a row for each
entry. The header has two records that say where the ledger is and how large: [batch, columns, its
first page]. Appending writes to the table behind the lengths, then the lengths over the older
record. What cannot be changed piece by piece, other entries or a wider table, goes to a new ledger,
and then both records of the header are written, one after the other, to point there.

Pages that no entry has are free, those of an old ledger and of forks that were among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._cache import header
from regard._cache.page_table import pages_between

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.file_pool import FilePool
    from regard._cache.geometry import Geometry

    Array = NDArray[Any]


class _Ledger:
    """Records of lengths and a table, as they lie in some pages."""

    def __init__(self, pool: FilePool, batch: int, columns: int, first: int) -> None:
        size = header.record_size(batch)
        at = _table_offset(batch)
        self.run = range(first, first + _pages_for(pool, batch, columns))
        self.records = pool.bytes_at(first, 0, (2, size), np.uint8)
        self.table = pool.bytes_at(first, at, (batch, columns), np.int32)

    @classmethod
    def written(cls, pool: FilePool, run: range, pages: Array, lengths: Array) -> _Ledger:
        """Return one with this content, and all the columns that its pages have room for."""
        batch, columns = pages.shape
        room = (len(run) * pool.stride - _table_offset(batch)) // (4 * batch)
        ledger = cls(pool, batch, room, run.start)
        ledger.table[:, :columns] = pages
        ledger.records[...] = 0
        ledger.records[1] = np.frombuffer(header.record(1, lengths), np.uint8)
        return ledger


class FileTable:
    """The pages of each entry, mapped from the file."""

    nbytes = 0  # it lies in pages itself

    def __init__(self, pool: FilePool, ledger: _Ledger, number: int, spare: range) -> None:
        self._pool = pool
        self._ledger = ledger
        self._number = number  # which record of lengths is the newest
        self._spare = spare  # where the ledger lay before, and a new one may lie

    @property
    def pages(self) -> Array:
        """What the file says, and what it will say where this is written to."""
        return self._ledger.table

    @property
    def own_pages(self) -> Array:
        """Return the pages that are not an entry's."""
        return np.array([*self._ledger.run, *self._spare], np.int32)

    @classmethod
    def create(cls, pool: FilePool, batch: int) -> FileTable:
        """Return a table in a new file, of entries without tokens."""
        pages, lengths = np.zeros((batch, 0), np.int32), np.zeros(batch, np.int64)
        run = pool.take_side_by_side(_pages_for(pool, batch, 0))
        ledger = _Ledger.written(pool, run, pages, lengths)
        table = cls(pool, ledger, 1, range(0))
        table.publish()
        return table

    @classmethod
    def opened(cls, pool: FilePool, geometry: Geometry) -> tuple[FileTable, Array]:
        """Return table and lengths of a file, and give the pages to their owners."""
        path = pool.file.path
        place, is_finished = pool.read_header()
        if not place.size or place.min() < 0 or place[0] == 0:
            raise ValueError(
                f"{path} is damaged: neither of its two records of where the table lies is whole, "
                "and of 1 entry or more"
            )
        batch, columns, first = place.tolist()
        _check_pages(pool, first + _pages_for(pool, batch, columns))
        ledger = _Ledger(pool, batch, columns, first)
        number, lengths = header.newest(record.tobytes() for record in ledger.records)
        header.check_lengths(lengths, _longest(geometry, columns), path)
        table = cls(pool, ledger, number, range(0))
        named = pages_between(ledger.table, 0, -(-lengths // geometry.page_size)).astype(np.int64)
        _check_pages(pool, int(named.max(initial=-1)) + 1)
        wrong = named[(named < 0) | np.isin(named, ledger.run)]
        if wrong.size:
            raise ValueError(
                f"{path} is damaged: pages of tokens must be from 0 to {len(pool.rows.key) - 1} "
                f"and not from {first} to {ledger.run.stop - 1}, where the table lies, got "
                f"{wrong[0]}"
            )
        pool.claim(np.concatenate([named, table.own_pages]))
        if pool.is_writable:
            pool.file.allocate(pool.file.size)  # a copy may have been made with holes
            if not is_finished:
                table.publish()
        return table, lengths

    def commit(self, lengths: Array) -> None:
        """Write the lengths over the older record."""
        number = self._number + 1
        content = header.record(number, lengths)
        self._ledger.records[number % 2] = np.frombuffer(content, np.uint8)
        self._number = number

    def replaced(self, pages: Array, lengths: Array) -> FileTable:
        """Write a new ledger, and let the header point there."""
        pool, needed = self._pool, _pages_for(self._pool, *pages.shape)
        if len(self._spare) < needed:
            spare, self._spare = self._spare, range(0)
            pool.give_back(np.array(spare, np.int32))
            self._spare = pool.take_side_by_side(needed)
        ledger = _Ledger.written(pool, self._spare, pages, lengths)
        if ledger.table.shape[0] == self.pages.shape[0] and pages.shape[1] > self.pages.shape[1]:
            pool.flush()  # this is rare, and a power failure now would cost all
        table = FileTable(pool, ledger, 1, self._ledger.run)
        table.publish()
        return table

    def publish(self) -> None:
        """Let the header point here."""
        self._pool.write_header(np.array([*self.pages.shape, self._ledger.run.start]))


def _longest(geometry: Geometry, columns: int) -> int:
    assert geometry.page_size is not None
    longest = columns * geometry.page_size
    return longest if geometry.capacity is None else min(longest, geometry.capacity)


def _table_offset(batch: int) -> int:
    return header.aligned(2 * header.record_size(batch))


def _pages_for(pool: FilePool, batch: int, columns: int) -> int:
    """Return how many pages a ledger takes."""
    return -(-(_table_offset(batch) + 4 * batch * columns) // pool.stride)


def _check_pages(pool: FilePool, needed: int) -> None:
    """Refuse a file that has fewer pages than it speaks of."""
    if needed > len(pool.rows.key):
        raise ValueError(
            f"{pool.file.path} is truncated: it should have {pool.end_of(needed)} bytes or more "
            f"and has {pool.file.size}"
        )
