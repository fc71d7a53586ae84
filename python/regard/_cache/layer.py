"""The keys and values of a layer of a content, to which they are appended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._cache.step import Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.content import Content
    from regard._cache.storage.geometry import Geometry
    from regard._cache.storage.rows import LayerRows
    from regard._cache.storage.state import PerEntry, State

    Array = NDArray[Any]

_NO_PAGES = np.zeros(0, np.int32)


class Layer:
    """One layer of a content.

    New tokens become effective once all layers have stored them. Until then, only the layers that
    have stored their tokens see them.
    """

    __slots__ = ("content", "number")

    def __init__(self, content: Content, number: int) -> None:
        self.content = content
        self.number = number

    @property
    def state(self) -> State | None:
        """The state that this layer has, or None if the cache is closed."""
        content = self.content
        step = content.step
        if step is not None and step.before is content.state and self.number in step.layers:
            return step.after
        return content.state

    @property
    def may_be_empty(self) -> bool:
        """False: attending before an append is an error."""
        return False

    @property
    def geometry(self) -> Geometry:
        """The properties of the cache that never change."""
        return self.content.pool.geometry

    @property
    def rows(self) -> LayerRows:
        """The pages, valid until they move."""
        room = self.content.pool.room
        room.check_length()
        return room.rows.layers[self.number]

    def append_plain(self, key: Any, value: Any, starts: Any = None) -> bool:
        """Append tokens that fit into the last pages of all entries, or return False.

        This is the fast path for single tokens: plain arrays, with no page taken or evicted. The
        tokens are packed if there are `starts`.
        """
        content = self.content
        pool = content.pool
        geometry = pool.geometry
        with pool.lock:
            room, state = pool.room, content.state
            step = None if content.step is None else content.unfinished()
            assert state is not None
            if room.is_foreign():
                return False
            room.check_length()
            if step is not None:
                step.check_layer(self.number, geometry.layers)
                if not step.fits(starts):
                    return False
                pages, place = step.after.pages, step.start(geometry.page_size)
                most = step.counts if isinstance(step.counts, int) else int(step.counts.max())
            elif not state.spare or not content.is_committed(state):
                return False
            else:
                pages, place, most = state.pages, state.row_after(geometry.page_size), state.spare
            core = room.rows.layers[self.number].core
            new: PerEntry | None
            if starts is None:
                new = core.store_plain(pages, place, most, key, value)
            else:
                new = core.store_packed(pages, place, most, key, value, starts)
            if new is None or (isinstance(new, int) and new < 0):
                return False
            if step is not None:
                step.check_counts(self.number, new)
            elif isinstance(new, int) and not new:
                return True
            elif geometry.layers == 1:
                content.extend(state.longer(new))
                return True
            else:
                step = Step(state, state.longer(new), new, _NO_PAGES, extends=True)
            content.resume_step(step)
            content.complete(step, self.number)
        return True

    def check_step(self, counts: PerEntry) -> None:
        """Raise ValueError if this layer cannot continue an unfinished step."""
        step = self.content.unfinished()
        if step is not None:
            step.check_layer(self.number, self.geometry.layers)
            step.check_counts(self.number, counts)

    def append(self, rows: list[Array], counts: PerEntry, *, is_packed: bool = False) -> bool:
        """Store the first `counts` new tokens: keys, values and, with int8, their scales.

        If they are packed, the tokens of all entries are in one entry of `rows`. If a finite number
        would become infinite, return False and append nothing.
        """
        content, geometry = self.content, self.geometry
        with content.pool.lock:
            step = content.unfinished()
            if step is None:
                step = content.plan(counts)
            else:
                step.check_layer(self.number, geometry.layers)
                step.check_counts(self.number, counts)
                content.resume_step(step)
            core, start = self.rows.core, step.start(geometry.page_size)
            if not core.store(step.after.pages, start, counts, is_packed, *_four(rows)):
                return False  # no end(): the next change frees the pages that were taken
            content.complete(step, self.number)
        return True


def _four(rows: list[Array]) -> list[Array | None]:
    return [*rows, *[None] * (4 - len(rows))]
