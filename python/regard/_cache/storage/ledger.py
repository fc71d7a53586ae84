"""The state of a cache in its file. If the process dies, it is the state before or after a call.

A ledger has two records of the length and the number of evicted pages of each entry. The page table
follows at the next multiple of 64 bytes: 32-bit integers, one line per entry. The ledger is in one
of the two areas after the header or, if an area is too small, in consecutive pages.

An append writes to the table beyond the lengths, and then writes the lengths over the older record.
Changes that cannot be made in place, such as a new order of entries, are written to a new ledger.
Then both records of the header are written, one after the other, to point to the new ledger. Pages
without an entry are free.

The state in memory changes first, and the file follows. After an interruption, the next change
begins with `settle`, which writes the same bytes again. Until then, no data of the older state is
overwritten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from regard._cache.storage import header
from regard._cache.storage.file_room import FileRoom
from regard._cache.storage.rows import aligned
from regard._cache.storage.state import State, pages_between, per_entry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.storage.file_room import FileCopyRoom
    from regard._cache.storage.geometry import Geometry
    from regard._cache.storage.locked_file import LockedFile
    from regard._cache.storage.pool import Holder, Pool
    from regard._cache.storage.rows import PageLayout

    Array = NDArray[Any]

_HEADER_NUMBERS = 3  # batch, columns, place


class Lines:
    """The records and the table of a ledger in a file."""

    def __init__(self, room: FileRoom | FileCopyRoom, place: int, batch: int, columns: int) -> None:
        self.place = place
        self.number = 0  # of the newest record
        start, size = start_of(place, room.layout), header.record_size(2 * batch)
        self.records = np.ndarray((2, size), np.uint8, room.memory, start)
        table = start + table_offset(batch)
        self.table = np.ndarray((batch, columns), np.int32, room.memory, table)
        pages = bytes_for(batch, columns) if place > 1 else 0
        self.run = range(place - 2, place - 2 + -(-pages // room.layout.stride))

    def write_record(self, state: State) -> None:
        """Write lengths and numbers of evicted pages over the older record."""
        number = self.number + 1
        numbers = np.concatenate([state.all_lengths(), state.all_evicted()])
        self.records[number % 2] = np.frombuffer(header.record(number, numbers), np.uint8)
        self.number = number


class Ledger:
    """The ledger of a file, which records the state of its cache."""

    def __init__(self, pool: Pool, file: LockedFile, committed: State) -> None:
        self.file = file
        self.committed = committed
        self._pool = ref(pool)  # the pool of this ledger
        self._owner: ref[Holder] | None = None
        self._lines: Lines | None = None
        self._spare = range(0)  # pages of an earlier ledger, for the next one
        self._moves = 0  # the number of the newest record of the header

    @classmethod
    def created(cls, pool: Pool, file: LockedFile, state: State) -> Ledger:
        """Write a ledger to a new file."""
        ledger = cls(pool, file, state)
        ledger._write_anew(state)
        return ledger

    @classmethod
    def opened(cls, pool: Pool, file: LockedFile, room: FileRoom | FileCopyRoom) -> Ledger:
        """Read the ledger of a file, or raise a ValueError that describes the defect."""
        lines, moves, is_whole = _found_lines(file, room)
        ledger = cls(pool, file, read_state(lines, pool.geometry, room, file.path))
        ledger._lines, ledger._moves = lines, moves
        if file.is_writable and not is_whole:
            ledger._point_to(lines)
        return ledger

    @property
    def own_pages(self) -> Array:
        """The pages that belong to the ledger and not to an entry."""
        run = range(0) if self._lines is None else self._lines.run
        return np.array([*run, *(self._spare if self._spare != run else ())], np.int32)

    def set_owner(self, owner: Holder) -> None:
        """Set the content whose state the ledger records."""
        self._owner = ref(owner)

    def settle(self) -> None:
        """Write the owner's state if an interruption has kept it from the file."""
        owner = None if self._owner is None else self._owner()
        state = None if owner is None else owner.state
        is_behind = state is not None and not state.is_same_state(self.committed)
        if state is not None and is_behind and self.file.is_writable:
            self.commit(state, extends=False)

    def make_room(self, state: State, *, extends: bool) -> None:
        """Take the pages that `commit` will need, so that it does not fail on a full disk."""
        if not self._is_in_place(state, extends):
            self._next_place(bytes_for(*state.pages.shape))

    def commit(self, state: State, *, extends: bool) -> None:
        """Write a state to the file.

        With `extends`, the table differs from the committed table only beyond the committed
        lengths, or in pages with the same content.
        """
        lines = self._lines
        if lines is None or not self._is_in_place(state, extends):
            self._write_anew(state)
        else:
            if state.pages is not self.committed.pages:
                lines.table[:, : state.pages.shape[1]] = state.pages
            lines.write_record(state)
        self.committed = state

    def _is_in_place(self, state: State, extends: bool) -> bool:
        if self._lines is None:
            return False
        fits = extends and self._lines.table.shape[1] >= state.pages.shape[1]
        return fits or state.pages is self.committed.pages

    def _write_anew(self, state: State) -> None:
        """Write a new ledger, and make the header point to it."""
        batch, columns = state.pages.shape
        place = self._next_place(bytes_for(batch, columns))
        room = self._room()
        lines = Lines(room, place, batch, _columns_at(place, batch, columns, room.layout.stride))
        lines.table[:, :columns] = state.pages
        lines.records[...] = 0
        lines.write_record(state)
        if self._lines is not None and columns > self._lines.table.shape[1]:
            room.flush()  # this is rare, and a power failure now would lose everything
        self._point_to(lines)
        before, self._lines = self._lines, lines
        self._keep_spare(before)

    def _point_to(self, lines: Lines) -> None:
        """Write both records of the header one after the other, so that one is always whole."""
        room = self._room()
        numbers = np.array([*lines.table.shape, lines.place], np.int64)
        content = header.record(self._moves + 1, numbers)
        for which in range(2):
            at = header.RECORDS + which * len(content)
            room.memory[at : at + len(content)] = content
        self._moves += 1

    def _next_place(self, size: int) -> int:
        """Return a place for a ledger of this size, which is never the current place."""
        if size <= header.AREA_BYTES:
            return 1 if self._lines is not None and self._lines.place == 0 else 0
        needed = -(-size // self._room().layout.stride)
        is_free = self._lines is None or self._spare != self._lines.run
        if len(self._spare) < needed or not is_free:
            pool, small = self._open_pool(), self._spare
            self._spare = pool.take_side_by_side(needed)
            if is_free:
                pool.give_back(np.array(small, np.int32))
        return 2 + self._spare.start

    def _keep_spare(self, before: Lines | None) -> None:
        """Keep the pages of the previous ledger for the next one, and give back other pages."""
        assert self._lines is not None
        left = range(0) if self._spare == self._lines.run else self._spare
        if before is not None and before.run:
            self._spare = before.run
            self._open_pool().give_back(np.array(left, np.int32))
        else:
            self._spare = left

    def _open_pool(self) -> Pool:
        pool = self._pool()
        assert pool is not None
        return pool

    def _room(self) -> FileRoom:
        """Return the current room of the file."""
        room = self._open_pool().room
        assert isinstance(room, FileRoom)
        return room


def _found_lines(file: LockedFile, room: FileRoom | FileCopyRoom) -> tuple[Lines, int, bool]:
    """Return the ledger, the number of the header, and whether both its records agree."""
    size = header.record_size(_HEADER_NUMBERS)
    both = file.read(2 * size, header.RECORDS)
    moves, numbers = header.newest((both[:size], both[size:]))
    if not numbers.size or numbers.min() < 0:
        raise ValueError(
            f"{file.path} is damaged: both records of the ledger's position are invalid"
        )
    batch, columns, place = numbers.tolist()
    size = bytes_for(batch, columns)
    if place < 2 and size > header.AREA_BYTES:
        raise ValueError(
            f"{file.path} is damaged: a ledger of {batch} entries and {columns} columns needs "
            f"{size} bytes, and its area has {header.AREA_BYTES}"
        )
    if place >= 2:
        check_pages(file, room, place - 2 + -(-size // room.layout.stride))
    lines = Lines(room, place, batch, columns)
    return lines, moves, both[: len(both) // 2] == both[len(both) // 2 :]


def read_state(lines: Lines, geometry: Geometry, room: FileRoom | FileCopyRoom, path: str) -> State:
    """Return the state in a ledger, or raise ValueError."""
    batch, columns = lines.table.shape
    lines.number, numbers = header.newest(record.tobytes() for record in lines.records)
    if not lines.number:
        raise ValueError(f"{path} is damaged: neither of its records of lengths is whole")
    lengths, evicted = numbers.reshape(2, batch)
    for length, gone in zip(lengths.tolist(), evicted.tolist(), strict=True):
        _check_entry(length, gone, columns, geometry, path)
    held = -(-lengths // geometry.page_size) - evicted
    named = pages_between(lines.table, 0, held).astype(np.int64)
    check_pages(room.file, room, int(named.max(initial=-1)) + 1)
    wrong = named[(named < 0) | np.isin(named, lines.run)]
    if wrong.size:
        raise ValueError(
            f"{path} is damaged: pages of tokens must be from 0 to {room.pages_of_file - 1} and "
            f"not {list(lines.run)}, the position of the ledger, got {wrong[0]}"
        )
    pages = lines.table[:, : held.max(initial=0)].copy()
    return State(pages, per_entry(lengths), int(lengths.max(initial=0)), per_entry(evicted), 0)


def _check_entry(length: int, evicted: int, columns: int, geometry: Geometry, path: str) -> None:
    """Raise ValueError if an entry's length or number of evicted pages is impossible."""
    size, first_pages = geometry.page_size, geometry.first_pages
    most = (columns + evicted) * size
    if geometry.capacity is not None and geometry.keep_last is None:
        most = min(most, geometry.capacity)
    if not 0 <= length <= most:
        raise ValueError(f"{path} is damaged: its lengths must be from 0 to {most}, got {length}")
    most_evicted = 0 if geometry.keep_last is None else max(0, length // size - first_pages)
    if not 0 <= evicted <= most_evicted:
        raise ValueError(
            f"{path} is damaged: an entry of {length} tokens can have lost from 0 to "
            f"{most_evicted} pages, got {evicted}"
        )


def check_pages(file: LockedFile, room: FileRoom | FileCopyRoom, needed: int) -> None:
    """Raise ValueError if a file has fewer pages than it refers to."""
    if needed > room.pages_of_file:
        raise ValueError(
            f"{file.path} is truncated: it should have "
            f"{header.first_page(room.layout) + needed * room.layout.stride} bytes or more and has "
            f"{file.size}"
        )


def start_of(place: int, layout: PageLayout) -> int:
    """Return the offset of a ledger: places 0 and 1 are the areas, 2 is page 0."""
    if place < 2:
        return header.FIRST_AREA + place * header.AREA_BYTES
    return header.first_page(layout) + (place - 2) * layout.stride


def table_offset(batch: int) -> int:
    """Return the number of bytes of a ledger before its table."""
    return aligned(2 * header.record_size(2 * batch))


def bytes_for(batch: int, columns: int) -> int:
    """Return the number of bytes of a ledger."""
    return table_offset(batch) + 4 * batch * columns


def _columns_at(place: int, batch: int, columns: int, stride: int) -> int:
    """Return the number of columns that fit at a place chosen for `columns`."""
    size = header.AREA_BYTES if place < 2 else -(-bytes_for(batch, columns) // stride) * stride
    return (size - table_offset(batch)) // (4 * max(batch, 1))
