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

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from regard.cache import _header

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard.cache._file_pool import FilePool
    from regard.cache._geometry import Geometry

    Array = NDArray[Any]

_HEADER_RECORD = _header.record_size(3)
_ALIGNMENT = 64


class _Ledger:
    """Records of lengths and a table, as they lie in some pages."""

    def __init__(self, pool: FilePool, batch: int, columns: int, first: int) -> None:
        size = _header.record_size(batch)
        at = _table_offset(batch)
        self.run = range(first, first + _pages_for(pool, batch, columns))
        self.records = pool.bytes_at(first, 0, (2, size), np.uint8)
        self.table = pool.bytes_at(first, at, (batch, columns), np.int32)


class FileTable:
    """The pages of each entry, mapped from the file."""

    nbytes = 0  # it lies in pages itself

    def __init__(self, pool: FilePool) -> None:
        self._pool = pool
        self._moves = 0  # which record of the header is the newest
        self._number = 0  # which record of lengths is
        self._ledger: _Ledger | None = None
        self._spare = range(0)  # where the ledger lay before, and a new one may lie

    @property
    def pages(self) -> Array:
        """What the file says, and what it will say where this is written to."""
        assert self._ledger is not None
        return self._ledger.table

    @classmethod
    def create(cls, pool: FilePool, batch: int) -> Self:
        """Return a table in a new file, of entries without tokens."""
        table = cls(pool)
        table.replace(np.zeros((batch, 0), np.int32), np.zeros(batch, np.int64))
        return table

    @classmethod
    def opened(cls, pool: FilePool, geometry: Geometry) -> tuple[Self, Array]:
        """Return table and lengths of a file, and give the pages to their owners."""
        table, path = cls(pool), pool.file.path
        start = pool.file.read(2 * _HEADER_RECORD, _header.RECORDS)
        heads = start[:_HEADER_RECORD], start[_HEADER_RECORD:]
        table._moves, place = _header.newest(heads)
        if not place.size or place.min() < 0 or place[0] == 0:
            raise ValueError(f"{path} is damaged: no record of its header says where its table is")
        batch, columns, first = place.tolist()
        _check_pages(pool, first + _pages_for(pool, batch, columns))
        table._ledger = _Ledger(pool, batch, columns, first)
        lengths = table._read_lengths(geometry, columns)
        used = -(-lengths // geometry.page_size)
        named = table.pages[np.arange(columns) < used[:, None]].astype(np.int64)
        _check_pages(pool, int(named.max(initial=-1)) + 1)
        if named.min(initial=0) < 0 or np.isin(named, table._ledger.run).any():
            raise ValueError(f"{path} is damaged: its table has pages that cannot be an entry's")
        pool.claim(np.concatenate([named, table._ledger.run]))
        if pool.is_writable and heads[0] != heads[1]:
            table._point_at(table._ledger)
        return table, lengths

    def _read_lengths(self, geometry: Geometry, columns: int) -> Array:
        assert self._ledger is not None
        assert geometry.page_size is not None
        most = columns * geometry.page_size
        if geometry.capacity is not None:
            most = min(most, geometry.capacity)
        records = (record.tobytes() for record in self._ledger.records)
        self._number, lengths = _header.newest(records)
        _header.check_lengths(lengths, most, self._pool.file.path)
        return lengths

    def commit(self, lengths: Array) -> None:
        """Write the lengths over the older record."""
        assert self._ledger is not None
        self._number += 1
        content = _header.record(self._number, lengths)
        self._ledger.records[self._number % 2] = np.frombuffer(content, np.uint8)

    def replace(self, pages: Array, lengths: Array) -> None:
        """Write a new ledger, and let the header point there."""
        pool, (batch, columns) = self._pool, pages.shape
        needed, old = _pages_for(pool, batch, columns), self._ledger
        if len(self._spare) < needed:
            spare, self._spare = self._spare, range(0)
            pool.give_back(np.array(spare, np.int32))
            self._spare = pool.take_side_by_side(needed)
        run = self._spare
        # All that the last page has room for.
        wide = (len(run) * pool.stride - _table_offset(batch)) // (4 * batch)
        new = _Ledger(pool, batch, wide, run.start)
        new.table[:, :columns] = pages
        new.records[...] = 0
        new.records[1] = np.frombuffer(_header.record(1, lengths), np.uint8)
        try:
            self._point_at(new)
        except BaseException:
            if old is not None:
                self._point_at(old)
            raise
        self._spare = range(0) if old is None else old.run
        self._ledger, self._number = new, 1

    def _point_at(self, ledger: _Ledger) -> None:
        self._moves += 1
        place = np.array([*ledger.table.shape, ledger.run.start])
        content = _header.record(self._moves, place)
        for number in range(2):
            self._pool.put_into_header(_header.RECORDS + number * len(content), content)


def _table_offset(batch: int) -> int:
    return -(-2 * _header.record_size(batch) // _ALIGNMENT) * _ALIGNMENT


def _pages_for(pool: FilePool, batch: int, columns: int) -> int:
    """Return how many pages a ledger takes."""
    return -(-(_table_offset(batch) + 4 * batch * columns) // pool.stride)


def _check_pages(pool: FilePool, needed: int) -> None:
    """Refuse a file that has fewer pages than it speaks of."""
    if needed > len(pool.rows.key):
        raise ValueError(
            f"{pool.file.path} is truncated: it should have {pool.size(needed)} bytes or more and "
            f"has {pool.file.size}"
        )
