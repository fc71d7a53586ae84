"""Where keys and values lie: what a cache asks of it, and its form in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from regard._cache.rows import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.geometry import Geometry

    Array = NDArray[Any]


class Slots(Protocol):
    """Room for a number of tokens of each batch entry.

    Its size is fixed. To change it, a cache asks for a successor, fills it and publishes it.
    """

    rows: Rows
    path: str | None

    @property
    def is_writable(self) -> bool:
        """Whether slots may be written to."""

    def commit(self, lengths: Array, first: Array) -> None:
        """Make known what has been written."""

    def successor(self, geometry: Geometry, slots: int) -> Self:
        """Return room of the same kind, which nobody else knows until it is published."""

    def publish(self) -> None:
        """Take the predecessor's place."""

    def discard(self) -> None:
        """Vanish without having been published."""

    def flush(self) -> None:
        """Wait until all that was committed is safe."""

    def close(self) -> None:
        """Let others have it, where there are others. Who reads it still may go on."""


class MemorySlots:
    """Plain arrays."""

    is_writable = True
    path: str | None = None

    def __init__(self, geometry: Geometry, slots: int) -> None:
        self.rows = Rows.made(geometry, geometry.batch, slots, np.empty)

    @classmethod
    def copy_of(cls, other: Slots, geometry: Geometry) -> MemorySlots:
        """Return the same slots with the same content."""
        copy = cls(geometry, other.rows.key.shape[2])
        copy.rows.put(..., other.rows)
        return copy

    def commit(self, lengths: Array, first: Array) -> None:
        """Nobody but the cache looks here."""

    def successor(self, geometry: Geometry, slots: int) -> MemorySlots:
        """Return new arrays."""
        return MemorySlots(geometry, slots)

    def publish(self) -> None:
        """Nobody but the cache looks here."""

    def discard(self) -> None:
        """Leave it to the garbage collector."""

    def flush(self) -> None:
        """There is nothing to wait for."""

    def close(self) -> None:
        """Leave it to the garbage collector."""


def copy_tokens(
    geometry: Geometry,
    source: Slots,
    target: Slots,
    entries: list[tuple[int, int, int]],
) -> Array:
    """Copy what `target` can hold: for each of its entries, that of an entry of `source`.

    `entries` has (entry of source, length, first kept position). Returns the first kept positions.
    """
    had, has = source.rows.key.shape[2], target.rows.key.shape[2]
    kept = np.full(len(entries), geometry.sink_tokens, np.int64)
    for to, (entry, length, first) in enumerate(entries):
        spans = geometry.spans(has, length, first)
        if length > geometry.sink_tokens:
            kept[to] = spans[-1][0]
        for start, stop in spans:
            for position, slot, count in geometry.runs(had, start, stop):
                for place, to_slot, n in geometry.runs(has, position, position + count):
                    at = slot + place - position
                    found = source.rows.part(np.s_[entry, :, at : at + n])
                    target.rows.put(np.s_[to, :, to_slot : to_slot + n], found)
    return kept
