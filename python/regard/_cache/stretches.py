"""Where in a ring of slots lies what queries may see.

Numbers are lists of Python's own, one for each batch entry, or a single one where all entries are
alike: they are few, and a call waits for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from regard._cache.geometry import Geometry

    Sides = tuple[int | None, int | None]


class Entry(NamedTuple):
    """A batch entry and the queries that attend to it."""

    length: int
    first: int  # the first position behind the sinks that has not been overwritten
    offset: int


class Stretch(NamedTuple):
    """Slots of consecutive positions."""

    slots: slice
    starts: list[int]  # the position in the first slot
    filled: list[int]  # how many of the slots count, from the first
    offsets: list[int]  # of the queries, from the first slot
    window: Sides


def stretches(
    geometry: Geometry, room: int, entries: list[Entry], q_len: int, sides: Sides, *, causal: bool
) -> list[Stretch]:
    """Return what the queries may see, one stretch or more."""
    assert geometry.window is not None
    sinks, ring, reach = geometry.sink_tokens, geometry.ring(room), geometry.window - 1
    left = reach if sides[0] is None else min(sides[0], reach)
    for number, entry in enumerate(entries):
        _check_kept(number, entry, q_len, left, sinks, causal=causal)

    # The newer part begins at the ring's first slot and is not empty; the older one is what the
    # turn before has left behind it.
    turns, starts, older = [], [], []
    is_plain = True
    for entry in entries:
        behind = max(entry.length - sinks, 0)
        turn = (behind - 1) % ring + 1 if behind else 0
        start = sinks + behind - turn
        turns.append(turn)
        starts.append(start)
        older.append(start > sinks and turn < ring and entry.offset - left < start)
        is_plain &= start == sinks and entry.offset + q_len - 1 - reach <= sinks

    def stretch(slots: slice, starts: list[int], filled: list[int], window: Sides) -> Stretch:
        offsets = [entry.offset - start for entry, start in zip(entries, starts, strict=True)]
        return Stretch(slots, starts, filled, offsets, window)

    lengths, zero = [entry.length for entry in entries], [0] * len(entries)
    if is_plain or not any(lengths):
        # Nothing is hidden by the cache's window: all lies as in a cache without one. One that is
        # empty may have no slots.
        return [stretch(slice(0, max(lengths)), zero, lengths, sides)]
    found, window = [], (left, sides[1])
    if sinks:
        filled = [min(length, sinks) for length in lengths]
        found.append(stretch(slice(0, max(filled)), zero, filled, sides))
    if any(older):
        # Slots that the newer part has taken stand before all that the queries may see.
        before = [start - ring if has else sinks for start, has in zip(starts, older, strict=True)]
        filled = [ring if has else 0 for has in older]
        found.append(stretch(slice(sinks, sinks + ring), before, filled, window))
    found.append(stretch(slice(sinks, sinks + max(turns)), starts, turns, window))
    return found


def _check_kept(
    number: int, entry: Entry, q_len: int, left: int, sinks: int, *, causal: bool
) -> None:
    """Refuse queries that should see what has been evicted."""
    lowest = max(entry.offset, sinks) if causal else entry.offset
    needed = max(lowest - left, sinks)
    if lowest < entry.offset + q_len and needed < entry.first:
        raise ValueError(
            f"query at position {lowest} of batch entry {number} sees keys from position {needed} "
            f"on, and those before {entry.first} are evicted: attend before more is appended"
        )
