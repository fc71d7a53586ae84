"""What a cache holds at the moment, in one piece: it changes at once or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.storage.geometry import Geometry

    Array = NDArray[Any]
    PerEntry = int | Array  # one int for all batch entries alike, or an array of int64


class State(NamedTuple):
    """The batch entries of a cache. No array in it is ever written to."""

    pages: Array  # (batch, columns) of int32; what lies beyond an entry's length may be anything
    lengths: PerEntry
    longest: int
    evicted: PerEntry  # pages after those of the first tokens that are gone and have no column
    # This many tokens fit into every entry's last page, which is its own, and evict nothing.
    spare: int
    # How many tokens the last append gave each entry, where it gave them unequal numbers.
    recent: Array | None

    @classmethod
    def empty(cls, batch: int) -> State:
        """Return the state of entries without tokens."""
        return cls(np.zeros((batch, 0), np.int32), 0, 0, 0, 0, None)

    @property
    def batch(self) -> int:
        """How many entries there are."""
        return len(self.pages)

    def longer(self, new: int) -> State:
        """Return the state after this many of the spare tokens have been filled in each entry."""
        return State(
            self.pages,
            self.lengths + new,
            self.longest + new,
            self.evicted,
            self.spare - new,
            None,
        )

    def holds_the_same(self, other: State) -> bool:
        """Tell whether the other one was made from this one, or this from it, without a change."""
        return (
            self.pages is other.pages
            and self.lengths is other.lengths
            and self.evicted is other.evicted
        )

    def all_lengths(self) -> Array:
        """Return how long each entry is, in an array of the caller's."""
        return _array_of(self.lengths, self.batch)

    def all_evicted(self) -> Array:
        """Return how many pages each entry has lost, in an array of the caller's."""
        return _array_of(self.evicted, self.batch)

    def row_after(self, page_size: int) -> PerEntry:
        """Return where the next token goes, counted in tokens of the table's columns."""
        return self.lengths - self.evicted * page_size

    def columns(self, geometry: Geometry) -> Array:
        """Return how many columns of the table each entry has."""
        return -(-self.all_lengths() // geometry.page_size) - self.all_evicted()

    def held_pages(self, geometry: Geometry) -> Array:
        """Return the pages of all entries, one after another, as often as they occur."""
        return pages_between(self.pages, 0, self.columns(geometry))


def _array_of(numbers: PerEntry, batch: int) -> Array:
    if isinstance(numbers, int):
        return np.full(batch, numbers, np.int64)
    return numbers.copy()


def per_entry(numbers: Array) -> PerEntry:
    """Return one int where all numbers are equal."""
    first = int(numbers[0])
    return first if (numbers == first).all() else numbers


def pages_between(table: Array, start: Any, stop: Array) -> Array:
    """Return the pages in each entry's columns from `start` to `stop`."""
    table = table[:, : stop.max()]
    columns, lower = np.arange(table.shape[1]), np.broadcast_to(start, stop.shape)
    return table[(columns >= lower[:, None]) & (columns < stop[:, None])]
