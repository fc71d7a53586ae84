"""The content of a cache, and the operations that change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.ma  # np.unique imports it at its first use

from regard._cache.growth import plan_growth, spare_alike
from regard._cache.step import Step
from regard._cache.storage.state import State, pages_between, per_entry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.storage.geometry import Geometry
    from regard._cache.storage.ledger import Ledger
    from regard._cache.storage.pool import Pool
    from regard._cache.storage.state import PerEntry

    Array = NDArray[Any]

_NO_PAGES = np.zeros(0, np.int32)


class Content:
    """A state, and the pool of its pages.

    Forks and entries share pages, full pages permanently. If the last page of an entry is shared
    and not full, it is copied when the entry is appended to.

    A change writes only where the state has no tokens, becomes effective by assigning another
    state, and then updates the file. An interruption, even by a signal, leaves the content as it
    was before or as it is after the change.
    """

    def __init__(self, pool: Pool, state: State, ledger: Ledger | None = None) -> None:
        self.pool = pool
        self.state: State | None = state  # None if it is closed
        self.step: Step | None = None  # see `unfinished`
        self._ledger = ledger
        pool.members.add(self)

    @classmethod
    def of_file(cls, pool: Pool, ledger: Ledger) -> Content:
        """Return the content of a file."""
        content = cls(pool, ledger.committed, ledger)
        ledger.set_owner(content)
        return content

    @property
    def geometry(self) -> Geometry:
        """The properties of the cache that never change."""
        return self.pool.geometry

    @property
    def is_writable(self) -> bool:
        """Whether the content may be changed, which a read-only file does not allow."""
        return self._ledger is None or self._ledger.file.is_writable

    @property
    def nbytes(self) -> int:
        """Number of bytes of the used pages of the pool, and of the page table."""
        assert self.state is not None
        pool = self.pool
        return pool.used * pool.room.layout.stride + self.state.pages.nbytes

    def owned_pages(self) -> list[Array]:
        """Return the pages that this content owns; a file's ledger owns the pages of the state."""
        return self._pages_of_step() if self._ledger is not None else self.held_pages()

    def held_pages(self) -> list[Array]:
        """Return the pages of the state and of an unfinished step."""
        if self.state is None:
            return []
        return [self.state.held_pages(self.geometry), *self._pages_of_step()]

    def _pages_of_step(self) -> list[Array]:
        step = self.unfinished()
        if step is None:
            return []
        after, before = (each.held_pages(self.geometry) for each in (step.after, step.before))
        return [np.setdiff1d(after, before)]

    def unfinished(self) -> Step | None:
        """Return the step that some layers have finished and others have not, if there is one."""
        step = self.step
        return step if step is not None and step.before is self.state else None

    def is_committed(self, state: State) -> bool:
        """Return whether the file, if there is one, has this state."""
        return self._ledger is None or self._ledger.committed is state

    def extend(self, after: State) -> None:
        """Make a state with more tokens in the same pages effective."""
        self.state = after
        if self._ledger is not None:
            self._ledger.commit(after, extends=True)

    def plan(self, counts: PerEntry) -> Step:
        """Begin a change, and take pages for `counts` new tokens of each entry.

        The pool's lock is held. The caller stores the tokens, and calls `complete`.
        """
        pool, geometry = self.pool, self.geometry
        state = self._begin()
        if (counts if isinstance(counts, int) else int(counts.max())) <= state.spare:
            return Step(state, state.longer(counts), counts, _NO_PAGES, extends=True)
        growth = plan_growth(state, counts, geometry, pool)
        for copy in growth.copies:
            pool.room.rows.copy_page(copy.page, copy.to, copy.tokens)
        if geometry.layers > 1 and self._ledger is not None:  # so that no later layer fails
            self._ledger.make_room(growth.state, extends=growth.extends)
        return Step(state, growth.state, counts, growth.freed, extends=growth.extends)

    def resume_step(self, step: Step) -> None:
        """Begin a change that continues a step."""
        self._resumed()
        assert step.before is self.state

    def complete(self, step: Step, layer: int) -> None:
        """End the change after which a layer has its new tokens.

        With the last layer, they become effective.
        """
        if len(step.layers) + 1 == self.geometry.layers:
            self._become(step.after, extends=step.extends)
            self.pool.give_back(step.freed)
            self.step = None
        else:
            step.layers.add(layer)
            self.step = step
        self.pool.end()

    def rollback(self) -> None:
        """Remove the tokens of an unfinished step."""
        with self.pool.lock:
            self._resumed()
            step = self.unfinished()
            if step is not None:
                pages = self._pages_of_step()
                self.step = None
                self.pool.give_back(pages[0])
            self.pool.end()

    def truncate_alike(self, length: Any) -> bool:
        """Truncate entries of equal lengths to a shorter length, or return False.

        This is the fast path for undoing guesses token by token, in a fifth of the time.
        """
        pool, size = self.pool, self.geometry.page_size
        if self.geometry.keep_last is not None or type(length) is not int:
            return False
        with pool.lock:
            state = self._begin()  # may complete a change that was interrupted
            if type(state.lengths) is not int or not 0 <= length <= state.lengths:
                pool.end()
                return False
            keep, have = -(-length // size), -(-state.longest // size)
            is_own = keep > 0 and (pool.owners(state.pages[:, keep - 1]) == 1).all()
            spare = spare_alike(length, 0, self.geometry) if is_own else 0
            self._become(state.truncated(length, 0, spare), extends=True)
            pool.give_back(state.pages[:, keep:have])
            pool.end()
        return True

    def truncate(self, shorter: Array) -> None:
        """Remove the last tokens, and give their pages back."""
        pool, size = self.pool, self.geometry.page_size
        with pool.lock:
            state = self._begin()
            self._check_kept(state, shorter)
            first_pages, evicted = self.geometry.first_pages, state.all_evicted()
            # An entry with only first pages has no evicted pages.
            evicted[shorter <= first_pages * size] = 0
            keep = -(-shorter // size) - evicted
            freed = pages_between(state.pages, keep, state.columns(self.geometry))
            after = state.truncated(per_entry(shorter), per_entry(evicted), 0)
            self._become(after, extends=True)
            pool.give_back(freed)
            pool.end()

    def _check_kept(self, state: State, shorter: Array) -> None:
        """Refuse a truncation after which the last token would see evicted tokens."""
        geometry, evicted = self.geometry, state.all_evicted()
        if geometry.keep_last is None or not evicted.any():
            return
        first_tokens = geometry.first_pages * geometry.page_size
        first = first_tokens + evicted * geometry.page_size
        lost = (shorter > first_tokens) & (shorter - geometry.keep_last < first) & (evicted > 0)
        lost &= shorter < state.all_lengths()
        if lost.any():
            entry = int(np.argmax(lost))
            raise ValueError(
                f"length must be at least {first[entry] + geometry.keep_last} for batch entry "
                f"{entry}, whose positions before {first[entry]} are evicted, or at most "
                f"{first_tokens}, got {shorter[entry]}"
            )

    def reorder(self, chosen: Array) -> None:
        """Select entries, or empty entries for -1. Pages are shared, and nothing is copied."""
        pool, geometry = self.pool, self.geometry
        with pool.lock:
            state = self._begin()
            after = state.chosen(chosen)
            pool.share(after.held_pages(geometry))
            self._become(after, extends=False)
            pool.give_back(state.held_pages(geometry))
            pool.end()

    def fork(self, chosen: Array | None = None) -> Content:
        """Return another content with the same pages, or with the pages of some entries."""
        pool = self.pool
        with pool.lock:
            state = self._begin()
            # No last page has a single owner anymore.
            shared = state._replace(spare=0)
            forked = shared if chosen is None else shared.chosen(chosen)
            pool.share(forked.held_pages(self.geometry))
            self.state = shared
            fork = Content(pool, forked)
            pool.end()
        return fork

    def adopt(self, other: Content, entry: int) -> int:
        """Move an entry of another content in the same pool here, and return its number.

        An interruption between the two changes leaves it in both.
        """
        pool, geometry = self.pool, self.geometry
        with pool.lock:
            state, theirs = self._begin(), other._begin()
            moved = theirs.chosen(np.array([entry]))
            pages = moved.held_pages(geometry)
            pool.share(pages)
            self._become(state.joined(moved), extends=False)
            left = np.delete(np.arange(theirs.batch), entry)
            other._become(theirs.chosen(left), extends=False)
            pool.give_back(pages)
            pool.end()
        return state.batch

    def copy_from(self, other: Content) -> int:
        """Add the entries of another pool's content, whose pages are copied, at the end."""
        pool, geometry = self.pool, self.geometry
        with pool.lock:
            state, theirs = self._begin(), other.state
            assert theirs is not None
            columns = theirs.columns(geometry)
            held = pages_between(theirs.pages, 0, columns)
            taken = np.array(pool.take(len(held)), np.int32)
            other.pool.room.check_length()
            sources = other.pool.room.rows.arrays
            for array, source in zip(pool.room.rows.arrays, sources, strict=True):
                array[taken] = source[held]
            pages = np.zeros((theirs.batch, int(columns.max(initial=0))), np.int32)
            pages[np.arange(pages.shape[1]) < columns[:, None]] = taken
            copied = State(pages, theirs.lengths, theirs.longest, theirs.evicted, 0)
            self._become(state.joined(copied), extends=False)
            pool.end()
        return state.batch

    def keep(self, entry: int, positions: Array) -> None:
        """Keep only these tokens of the last append to an entry, one after another.

        They are copied to separate pages, which then replace the old pages.
        """
        pool, geometry, size = self.pool, self.geometry, self.geometry.page_size
        with pool.lock:
            state = self._begin()
            lengths, evicted = state.all_lengths(), int(state.all_evicted()[entry])
            start = first_of_last_append(state, entry)
            after = start + len(positions)
            # The pages from the first changed page on, and the current positions of their tokens.
            first = start // size
            wanted = np.concatenate([np.arange(first * size, start), positions])
            columns = wanted // size - (evicted if first >= geometry.first_pages else 0)
            old = state.pages[entry]
            column = first - (evicted if first >= geometry.first_pages else 0)
            taken = np.array(pool.take(-(-after // size) - first), np.int32)
            held = pool.room.rows
            for page in range(len(taken)):
                part = slice(page * size, (page + 1) * size)
                for array in held.arrays:
                    rows = array[old[columns[part]], :, :, wanted[part] % size]
                    array[taken[page], :, :, : len(rows)] = np.moveaxis(rows, 0, 2)
            pages = state.pages.copy()
            pages[entry, column : column + len(taken)] = taken
            last = int(state.columns(geometry)[entry])
            freed = old[column:last].copy()
            lengths[entry] = after
            assert state.before is not None
            given = lengths - state.before[0]  # tokens added to each entry by the last append
            kept = State(
                pages,
                per_entry(lengths),
                int(lengths.max()),
                state.evicted,
                0,
                None if isinstance(per_entry(given), int) else given,
                state.before,
            )
            self._become(kept, extends=False)
            pool.give_back(freed)
            pool.end()

    def flush(self) -> None:
        """Wait until all content is on the disk."""
        if self._ledger is not None:
            with self.pool.lock:
                self.pool.room.check_length()
                self._resumed()
                self.pool.end()
                if self._ledger.file.is_writable:
                    self.pool.room.flush()

    def close(self) -> None:
        """Give all pages back, or close the file and copy the content of its forks to memory."""
        pool = self.pool
        with pool.lock:
            if self._ledger is not None:
                self._close_file(self._ledger)
                return
            if self.state is not None:
                pool.begin()
                pages = np.concatenate(self.held_pages())
                self.state = None
                pool.give_back(pages)
                pool.end()

    def _close_file(self, ledger: Ledger) -> None:
        pool = self.pool
        if pool.ledger is not None:
            if self.state is not None:
                self._resumed()
            held = [_NO_PAGES]
            for member in list(pool.members):
                if member is not self:
                    held += member.owned_pages()
            pages = np.unique(np.concatenate(held))
            if pages.size:
                pool.room.check_length()
            room = pool.room.copied(pages)
            self.state = None
            pool.room = room
            pool.ledger = None
        self.state = None
        pool.must_recount = True  # so that the pages of its forks are counted again
        ledger.file.close()

    def _begin(self) -> State:
        """Begin a change, and return the state."""
        step = self.unfinished()
        if step is not None and self.is_writable:
            step.refuse_change(self.geometry.layers)
        self.pool.room.check_length()
        return self._resumed()

    def _resumed(self) -> State:
        """Return the state, after completing a change that was interrupted."""
        self.pool.begin()
        if self._ledger is not None:
            self._ledger.settle()
        assert self.state is not None
        return self.state

    def _become(self, after: State, *, extends: bool) -> None:
        if self._ledger is None:
            self.state = after
        else:
            self._ledger.make_room(after, extends=extends)
            self.state = after
            self._ledger.commit(after, extends=extends)

    def __del__(self) -> None:
        # No lock: it may be held now. The pages of a file belong to its ledger.
        if hasattr(self, "pool"):
            self.pool.must_recount = True


def first_of_last_append(state: State, entry: int) -> int:
    """Return the position of the first token that the last append added to an entry."""
    if state.before is None:
        raise ValueError("keep must follow the append of the tokens that it chooses from")
    lengths = state.before[0]
    return lengths if isinstance(lengths, int) else int(lengths[entry])
