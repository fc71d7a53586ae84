"""The current state of a cache, which changes as a whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.storage.geometry import Geometry

    Array = NDArray[Any]
    PerEntry = int | Array  # one int for all batch entries, or an int64 array

_NOT_SHORT = np.iinfo(np.int64).max  # in `recent`: the last append was not too short


class State(NamedTuple):
    """The batch entries of a cache. The arrays are never written to."""

    pages: Array  # (batch, columns) of int32; arbitrary beyond an entry's length
    lengths: PerEntry
    longest: int
    evicted: PerEntry  # evicted pages after the pages of the first tokens; they have no column
    # The number of tokens that fit into the unshared last page of each entry and evict nothing.
    spare: int
    # The number of tokens that the last append added to each entry, if the numbers were unequal.
    recent: Array | None = None
    # The lengths before the last append, and `recent` then.
    before: tuple[PerEntry, Array | None] | None = None

    @classmethod
    def empty(cls, batch: int) -> State:
        """Return the state of entries without tokens."""
        return cls(np.zeros((batch, 0), np.int32), 0, 0, 0, 0)

    @property
    def batch(self) -> int:
        """Number of entries."""
        return len(self.pages)

    def longer(self, new: PerEntry) -> State:
        """Return the state after `new` spare tokens of each entry have been filled."""
        lengths: PerEntry = self.lengths + new
        before = self.lengths, self.recent
        recent: Array | None = None
        if isinstance(new, int):
            longest, most = self.longest + new, new
        else:  # unequal numbers
            recent = new
            longest, most = int(np.max(lengths)), int(new.max())
        return State(self.pages, lengths, longest, self.evicted, self.spare - most, recent, before)

    def chosen(self, entries: Array) -> State:
        """Return the state of some entries, which share their pages; -1 is an empty entry."""
        if self.batch == 0:
            return State.empty(len(entries))
        lengths, evicted = self.all_lengths()[entries], self.all_evicted()[entries]
        lengths[entries < 0] = evicted[entries < 0] = 0
        recent = self.recent
        if recent is not None:
            recent = np.where(entries < 0, _NOT_SHORT, recent[entries])
        return State(
            self.pages[entries],
            per_entry(lengths),
            int(lengths.max(initial=0)),
            per_entry(evicted),
            0,
            recent,
        )

    def joined(self, other: State) -> State:
        """Return the state of the entries of both."""
        columns = max(self.pages.shape[1], other.pages.shape[1])
        pages = np.zeros((self.batch + other.batch, columns), np.int32)
        pages[: self.batch, : self.pages.shape[1]] = self.pages
        pages[self.batch :, : other.pages.shape[1]] = other.pages
        lengths = np.concatenate([self.all_lengths(), other.all_lengths()])
        evicted = np.concatenate([self.all_evicted(), other.all_evicted()])
        recent = None
        if self.recent is not None or other.recent is not None:
            both = (
                np.full(state.batch, _NOT_SHORT) if state.recent is None else state.recent
                for state in (self, other)
            )
            recent = np.concatenate([*both])
        longest = max(self.longest, other.longest)
        return State(pages, per_entry(lengths), longest, per_entry(evicted), 0, recent)

    def truncated(self, lengths: PerEntry, evicted: PerEntry, spare: int) -> State:
        """Return the state without the last tokens, whose pages the table still has.

        If that undoes the last append, `recent` has its previous value.
        """
        longest = lengths if isinstance(lengths, int) else int(lengths.max())
        recent = None
        if self.before is not None and _are_equal(lengths, self.before[0]):
            recent = self.before[1]
        return State(self.pages, lengths, longest, evicted, spare, recent)

    def is_same_state(self, other: State) -> bool:
        """Return whether one of the two states was made from the other without a change."""
        return (
            self.pages is other.pages
            and self.lengths is other.lengths
            and self.evicted is other.evicted
        )

    def all_lengths(self) -> Array:
        """Return the length of each entry, in a new array."""
        return _array_of(self.lengths, self.batch)

    def all_evicted(self) -> Array:
        """Return the number of evicted pages of each entry, in a new array."""
        return _array_of(self.evicted, self.batch)

    def row_after(self, page_size: int) -> PerEntry:
        """Return the place of the next token, in tokens from the table's first column."""
        return self.lengths - self.evicted * page_size

    def columns(self, geometry: Geometry) -> Array:
        """Return the number of table columns of each entry."""
        return -(-self.all_lengths() // geometry.page_size) - self.all_evicted()

    def held_pages(self, geometry: Geometry) -> Array:
        """Return the pages of all entries one after another, with repetitions."""
        return pages_between(self.pages, 0, self.columns(geometry))


def _array_of(numbers: PerEntry, batch: int) -> Array:
    if isinstance(numbers, int):
        return np.full(batch, numbers, np.int64)
    return numbers.copy()


def _are_equal(first: PerEntry, second: PerEntry) -> bool:
    if isinstance(first, int):
        return isinstance(second, int) and first == second
    return not isinstance(second, int) and bool((first == second).all())


def per_entry(numbers: Array) -> PerEntry:
    """Return one int if all numbers are equal."""
    if numbers.size == 0:
        return 0
    first = int(numbers[0])
    return first if (numbers == first).all() else numbers


def pages_between(table: Array, start: Any, stop: Array) -> Array:
    """Return the pages in each entry's columns from `start` to `stop`."""
    table = table[:, : stop.max(initial=0)]
    columns, lower = np.arange(table.shape[1]), np.broadcast_to(start, stop.shape)
    return table[(columns >= lower[:, None]) & (columns < stop[:, None])]
