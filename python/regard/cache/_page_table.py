"""Which pages each entry of a cache has, and how long it is, for whoever keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

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

    def replace(self, pages: Array, lengths: Array) -> None:
        """Have other entries, or more columns, at once. There may be more still than were given."""


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

    def replace(self, pages: Array, lengths: Array) -> None:
        """Use this array."""
        self.pages = pages
