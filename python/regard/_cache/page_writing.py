"""Where new tokens go in pages: room for them, and they themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._cache.page_state import consecutive
from regard._cache.rows import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.page_state import PageState

    Array = NDArray[Any]


def make_room(state: PageState, after: Array, taken: list[int]) -> None:
    """Put pages for the new tokens into the table, and copies in place of shared ones.

    What the pool gives is added to `taken` before anything is done with it.
    """
    copies: list[tuple[int, int, int]] = []
    fresh: list[tuple[int, int]] = []
    leaving: dict[int, int] = {}
    table, pool = state.table.pages, state.pool
    for entry, (start, stop) in enumerate(zip(state.lengths.tolist(), after.tolist(), strict=True)):
        column, filled = divmod(start, state.page_size)
        if filled and start < stop:
            page = int(table[entry, column])
            # Of several entries with one page, the last that leaves may keep it.
            if pool.owners(page) - leaving.get(page, 0) > 1:
                leaving[page] = leaving.get(page, 0) + 1
                copies.append((entry, column, filled))
        for column in range(state.pages_for(start), state.pages_for(stop)):
            fresh.append((entry, column))
    if not copies and not fresh:
        return
    taken += pool.take(len(copies) + len(fresh))
    pages = iter(taken)
    for entry, column, filled in copies:
        _copy(state, entry, column, filled, next(pages))
    for (entry, column), page in zip(fresh, pages, strict=True):
        table[entry, column] = page


def _copy(state: PageState, entry: int, column: int, filled: int, page: int) -> None:
    """Put a page with the same beginning in another's place."""
    table, rows = state.table.pages, state.rows
    old = table[entry, column : column + 1].copy()
    rows.put(np.s_[page, :, :filled], rows.part(np.s_[old[0], :, :filled]))
    table[entry, column] = page
    state.pool.give_back(old)


def write(state: PageState, rows: Rows, after: Array) -> None:
    """Write the new tokens behind those that there are."""
    table = state.table.pages
    if rows.key.shape[2] == 1:
        entries = np.flatnonzero(after > state.lengths)
        column, slot = np.divmod(state.lengths[entries], state.page_size)
        where = np.s_[table[entries, column], :, slot]
        state.rows.put_at(where, rows.part(np.s_[entries, :, 0]))
        return
    for entry, (start, stop) in enumerate(zip(state.lengths, after, strict=True)):
        _write_entry(state, rows.part(entry), table[entry], int(start), int(stop))


def _write_entry(state: PageState, new: Rows, table: Array, start: int, stop: int) -> None:
    """Write to the rest of a page, to whole pages at once, and to the beginning of one."""
    size, position = state.page_size, start
    while position < stop:
        column, slot = divmod(position, size)
        whole = (stop - position) // size if slot == 0 else 0
        count = whole * size or min(size - slot, stop - position)
        given = new.part(np.s_[:, position - start : position - start + count])
        if whole:
            parts = Rows(*(_as_pages(a, whole) for a in given.arrays))
            pages = table[column : column + whole].tolist()
            for run in consecutive(pages):
                first = pages[run.start]
                part = parts.part(np.s_[run.start : run.stop])
                state.rows.put(np.s_[first : first + len(run)], part)
        else:
            state.rows.put(np.s_[table[column], :, slot : slot + count], given)
        position += count


def _as_pages(rows: Array, count: int) -> Array:
    """Return rows of all heads, (kv_heads, slots, ...), as so many pages."""
    heads, slots, *dim = rows.shape
    return rows.reshape(heads, count, slots // count, *dim).swapaxes(0, 1)
