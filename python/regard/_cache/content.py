"""What a cache holds at the moment: slots, how far they are filled, and who else reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from regard._cache.quantise import quantised
from regard._cache.rows import Rows
from regard._cache.slots import MemorySlots, copy_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.geometry import Geometry
    from regard._cache.slots import Slots

    Array = NDArray[Any]

_ALL_HEADS = slice(None)


class Content:
    """Tokens in slots, which forks share until one of them writes."""

    def __init__(
        self,
        geometry: Geometry,
        slots: Slots,
        lengths: Array,
        first: Array,
        users: WeakSet[Content] | None = None,
    ) -> None:
        self.geometry = geometry
        # A file is its maker's; forks read it until either writes.
        self._owns_file = slots.path is not None and users is None
        self._use(slots, lengths, first, users)

    @classmethod
    def empty(cls, geometry: Geometry, slots: Slots) -> Content:
        """Return a content without tokens."""
        lengths = np.zeros(geometry.batch, np.int64)
        first = np.full(geometry.batch, geometry.sink_tokens, np.int64)
        slots.commit(lengths, first)
        return cls(geometry, slots, lengths, first)

    def _use(
        self, slots: Slots, lengths: Array, first: Array, users: WeakSet[Content] | None = None
    ) -> None:
        self.slots = slots
        self._users = WeakSet[Content]() if users is None else users
        self._users.add(self)
        self._set_lengths(lengths, first)

    def _set_lengths(self, lengths: Array, first: Array) -> None:
        # `first` is the first position behind the sinks that has not been overwritten.
        longest = int(lengths.max())
        is_uniform = int(lengths.min()) == longest
        self.lengths, self.first = lengths, first
        self.longest, self.is_uniform = longest, is_uniform

    @property
    def room(self) -> int:
        """How many slots there are."""
        return int(self.slots.rows.key.shape[2])

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self.slots.rows.nbytes

    @property
    def is_writable(self) -> bool:
        """Whether it may be changed: forks of what may not be are their own once they change."""
        return self.slots.is_writable or not self._owns_file

    def append(self, keys: Array, values: Array, counts: Array) -> None:
        """Store the first `counts` of the new tokens."""
        after = self.lengths + counts
        room = self.geometry.slots_for(self.room, after, counts)
        rows = Rows(keys, values)
        if self.geometry.is_quantised:
            rows = quantised(keys, values, counts)
        self._make_own(room)
        self._write(rows, after)
        first = self.first
        if self.geometry.window is not None:
            first = np.maximum(first, after - self.geometry.ring(room))
        self.slots.commit(after, first)
        self._set_lengths(after, first)

    def _write(self, rows: Rows, after: Array) -> None:
        if self.is_uniform and (after == after[0]).all():
            entries: list[tuple[Any, int, int]] = [(slice(None), self.longest, int(after[0]))]
        else:
            entries = [
                (entry, int(start), int(stop))
                for entry, (start, stop) in enumerate(zip(self.lengths, after, strict=True))
            ]
        for entry, start, stop in entries:
            for position, slot, n in self.geometry.runs(self.room, start, stop):
                at = position - start
                given = rows.part((entry, _ALL_HEADS, slice(at, at + n)))
                self.slots.rows.put((entry, _ALL_HEADS, slice(slot, slot + n)), given)

    def truncate(self, shorter: Array) -> None:
        """Forget the last tokens, unless what the last of the rest sees is gone."""
        first, window, sinks = self.first, self.geometry.window, self.geometry.sink_tokens
        if window is not None:
            needed = np.maximum(shorter - window, sinks)
            lost = (shorter < self.lengths) & (shorter > sinks) & (needed < first)
            if lost.any():
                entry = int(np.argmax(lost))
                raise ValueError(
                    f"length must be at least {first[entry] + window} for batch entry {entry}, "
                    f"whose positions before {first[entry]} are evicted, or at most {sinks}, got "
                    f"{shorter[entry]}"
                )
            first = np.where(shorter <= sinks, sinks, first)
        if self._owns_file:
            self.slots.commit(shorter, first)
        self._set_lengths(shorter, first)

    def reorder(self, chosen: list[int]) -> None:
        """Become a copy of the chosen entries."""
        if chosen != list(range(self.geometry.batch)):
            self._move(self.room, chosen)

    def fork(self) -> Content:
        """Return another content of the same slots."""
        return Content(self.geometry, self.slots, self.lengths, self.first, self._users)

    def flush(self) -> None:
        """Wait until all is safe."""
        self.slots.flush()

    def close(self) -> None:
        """Let go of the slots."""
        if self._owns_file:
            self._leave_copies()
            self.slots.close()
        self._users.discard(self)

    def _make_own(self, room: int) -> None:
        """See to it that there are so many slots and that nobody else reads them."""
        is_shared = len(self._users) > 1
        must_move = not self._owns_file and (is_shared or self.slots.path is not None)
        if must_move or room != self.room:
            self._move(room, list(range(self.geometry.batch)))
        elif is_shared:
            self._leave_copies()

    def _leave_copies(self) -> None:
        """Give the forks of a file one copy in memory, which they share."""
        forks = [user for user in self._users if user is not self]
        if forks:
            copy, users = MemorySlots.copy_of(self.slots, self.geometry), WeakSet[Content]()
            for fork in forks:
                fork._use(copy, fork.lengths, fork.first, users)
            self._users = WeakSet([self])

    def _move(self, room: int, chosen: list[int]) -> None:
        """Copy the chosen entries to slots of our own, and use these."""
        old, geometry = self.slots, replace(self.geometry, batch=len(chosen))
        new = old.successor(geometry, room) if self._owns_file else MemorySlots(geometry, room)
        try:
            entries = [(i, int(self.lengths[i]), int(self.first[i])) for i in chosen]
            first, lengths = copy_tokens(geometry, old, new, entries), self.lengths[chosen]
            new.commit(lengths, first)
            new.publish()
        except BaseException:
            new.discard()
            raise
        if self._owns_file:
            old.close()
        self._users.discard(self)
        self.geometry = geometry
        self._use(new, lengths, first)
