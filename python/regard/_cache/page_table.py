"""Which pages each entry of a cache has, and how long it is, for whoever keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


class PageTable(Protocol):
    """The pages of each entry. Those behind its length may be any.

    What is written to `pages` behind the lengths says nothing until these are committed. A page
    may be put in another's place if it holds the same.
    """

    @property
    def pages(self) -> Array:
        """Shape (batch, columns)."""

    @property
    def nbytes(self) -> int:
        """Bytes beside those of the pages that it speaks of."""

    def commit(self, lengths: Array) -> None:
        """Make known how long each entry is, after all that this speaks of has been written."""

    def replaced(self, pages: Array, lengths: Array) -> PageTable:
        """Return a table of other entries or more columns, which counts from now on.

        It may have more columns still.
        """

    def publish(self) -> None:
        """Count again, in place of one that has replaced this."""


class MemoryTable:
    """A table of which nobody else knows."""

    def __init__(self, pages: Array) -> None:
        self.pages = pages

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.pages.nbytes

    def commit(self, lengths: Array) -> None:
        """Nobody but the cache looks here."""

    def replaced(self, pages: Array, lengths: Array) -> MemoryTable:
        """Return a table of this array."""
        return MemoryTable(pages)

    def publish(self) -> None:
        """Nobody but the cache looks here."""


def pages_between(table: Array, start: Any, stop: Array) -> Array:
    """Return the pages in each entry's columns from `start` to `stop`."""
    table = table[:, : stop.max()]
    columns, lower = np.arange(table.shape[1]), np.broadcast_to(start, stop.shape)
    return table[(columns >= lower[:, None]) & (columns < stop[:, None])]
