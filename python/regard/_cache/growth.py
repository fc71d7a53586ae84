"""Which pages an append takes, copies and evicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._cache.storage.state import State, pages_between, per_entry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.storage.geometry import Geometry
    from regard._cache.storage.pool import Pool
    from regard._cache.storage.state import PerEntry

    Array = NDArray[Any]


_NO_PAGES = np.zeros(0, np.int32)


class Copy(NamedTuple):
    """A page that others have too, and an entry's own copy of its first tokens."""

    entry: int
    page: int
    to: int
    tokens: int


class Growth(NamedTuple):
    """The state after an append, and what leads to it."""

    state: State
    copies: list[Copy]
    freed: Array  # pages that the new state does not have, as often as the old one had them
    extends: bool  # whether the table has more columns, and no other difference that matters


def grown(state: State, counts: PerEntry, geometry: Geometry, pool: Pool) -> Growth:
    """Take pages for `counts` new tokens of each entry, and return where that leads.

    What a window evicts is given back by the caller once the new state is in effect: pages that the
    old one has are never written to.
    """
    alike = _grown_alike(state, counts, geometry, pool)
    if alike is not None:
        return alike
    size, table = geometry.page_size, state.pages
    before, evicted = state.all_lengths(), state.all_evicted()
    counts = np.broadcast_to(np.asarray(counts), before.shape)
    after = before + counts
    lost = _newly_evicted(before, evicted, geometry)
    have = state.columns(geometry)
    fresh = -(-after // size) - evicted - have
    shared = _shared_pages(state, before % size, have, pool)
    leaving = _entries_to_copy(shared, counts, table, have, pool)
    if not leaving and not fresh.any() and not lost.any():
        pages, copies = table, []
    else:
        taken = pool.take(len(leaving) + int(fresh.sum()))
        copies = [
            Copy(entry, int(table[entry, have[entry] - 1]), page, int(before[entry] % size))
            for entry, page in zip(leaving, taken, strict=False)
        ]
        pages = _wider_table(table, have, fresh, lost, geometry.first_pages)
        for copy in copies:
            pages[copy.entry, have[copy.entry] - lost[copy.entry] - 1] = copy.to
        _fill(pages, have - lost, fresh, taken[len(leaving) :])
    first_pages = geometry.first_pages
    given_up = np.array([copy.page for copy in copies], np.int32)
    freed = np.concatenate([pages_between(table, first_pages, first_pages + lost), given_up])
    unshared = np.where(counts > 0, False, shared)
    return Growth(
        State(
            pages,
            per_entry(after),
            int(after.max()),
            per_entry(evicted + lost),
            _spare(after, evicted + lost, unshared, geometry),
            None if (counts == counts[0]).all() else counts,
        ),
        copies,
        freed,
        not lost.any(),
    )


def _grown_alike(state: State, counts: PerEntry, geometry: Geometry, pool: Pool) -> Growth | None:
    """Grow entries that are all of one length, where nothing is copied or evicted.

    This is what happens when texts grow token by token, and takes a quarter of the time.
    """
    before, evicted, size = state.lengths, state.evicted, geometry.page_size
    if not (isinstance(before, int) and isinstance(evicted, int) and isinstance(counts, int)):
        return None
    after, kept = before + counts, (geometry.first_pages + evicted + 1) * size
    if geometry.keep_last is not None and before - geometry.keep_last >= kept:
        return None
    have = -(-before // size) - evicted
    if before % size and (pool.owners(state.pages[:, have - 1]) > 1).any():
        return None
    fresh = -(-after // size) - evicted - have
    pages = state.pages
    if fresh:
        taken = pool.take(state.batch * fresh)
        pages = np.empty((state.batch, have + fresh), np.int32)
        pages[:, :have] = state.pages[:, :have]
        pages[:, have:] = np.array(taken).reshape(state.batch, fresh)
    spare = spare_alike(after, evicted, geometry)
    longer = State(pages, after, after, evicted, spare, None)
    return Growth(longer, [], _NO_PAGES, extends=True)


def spare_alike(length: int, evicted: int, geometry: Geometry) -> int:
    """Return how many tokens fit into last pages that belong to their entries alone."""
    limits = [-length % geometry.page_size, geometry.most_at_once(length)]
    if geometry.keep_last is not None:
        kept = (geometry.first_pages + evicted + 1) * geometry.page_size
        limits.append(geometry.keep_last + kept - length)
    return max(0, min(limit for limit in limits if limit is not None))


def _newly_evicted(before: Array, evicted: Array, geometry: Geometry) -> Array:
    """Return how many more pages no query sees, neither now nor after the append is undone."""
    if geometry.keep_last is None:
        return np.zeros_like(before)
    hidden = (before - geometry.keep_last) // geometry.page_size - geometry.first_pages - evicted
    lost: Array = np.maximum(hidden, 0)
    return lost


def _shared_pages(state: State, filled: Array, have: Array, pool: Pool) -> Array:
    """Tell of each entry whether its last page is not full and others have it too."""
    shared = np.zeros(state.batch, bool)
    partial = np.flatnonzero(filled)
    shared[partial] = pool.owners(state.pages[partial, have[partial] - 1]) > 1
    return shared


def _entries_to_copy(
    shared: Array, counts: Array, table: Array, have: Array, pool: Pool
) -> list[int]:
    """Return the entries that need a copy of their last page.

    Of several entries with one page, the last keeps it if no other cache has it.
    """
    entries: list[int] = []
    left: dict[int, int] = {}
    for entry in np.flatnonzero(shared & (counts > 0)).tolist():
        page = int(table[entry, have[entry] - 1])
        owners = left.setdefault(page, int(pool.owners(page)))
        if owners > 1:
            left[page] = owners - 1
            entries.append(entry)
    return entries


def _wider_table(table: Array, have: Array, fresh: Array, lost: Array, first_pages: int) -> Array:
    """Return a table with room for fresh pages, without the lost ones."""
    wider = np.zeros((len(table), int((have + fresh - lost).max())), np.int32)
    if not lost.any():
        columns = min(table.shape[1], wider.shape[1])
        wider[:, :columns] = table[:, :columns]
        return wider
    for entry, (own, gone) in enumerate(zip(have.tolist(), lost.tolist(), strict=True)):
        first = min(own, first_pages) if gone else own
        wider[entry, :first] = table[entry, :first]
        wider[entry, first : own - gone] = table[entry, first + gone : own]
    return wider


def _fill(pages: Array, start: Array, fresh: Array, taken: list[int]) -> None:
    """Put what was taken into the columns from `start` on, entry by entry."""
    at = 0
    for entry in np.flatnonzero(fresh).tolist():
        first, count = int(start[entry]), int(fresh[entry])
        pages[entry, first : first + count] = taken[at : at + count]
        at += count


def _spare(after: Array, evicted: Array, shared: Array, geometry: Geometry) -> int:
    """Return how many tokens each entry can take before a page is taken, copied or evicted."""
    room = np.where(shared, 0, -after % geometry.page_size)
    most = geometry.most_at_once(int(after.max()))
    if geometry.keep_last is not None:
        kept = (geometry.first_pages + evicted + 1) * geometry.page_size
        room = np.minimum(room, geometry.keep_last + kept - after)
    return max(0, int(room.min()) if most is None else min(int(room.min()), most))
