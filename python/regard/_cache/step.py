"""New tokens of all layers, which become effective together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.storage.state import PerEntry, State

    Array = NDArray[Any]


class Step:
    """The states before and after new tokens that some layers have stored and others have not.

    It ends once the content no longer has the state before the step.
    """

    __slots__ = ("after", "before", "counts", "extends", "freed", "layers")

    def __init__(
        self, before: State, after: State, counts: PerEntry, freed: Array, *, extends: bool
    ) -> None:
        self.before = before
        self.after = after
        self.counts = counts  # new tokens of each entry
        self.freed = freed  # pages that `after` no longer has
        self.extends = extends  # as for `Ledger.commit`
        self.layers: set[int] = set()  # the layers that have stored their tokens

    def start(self, page_size: int) -> PerEntry:
        """Return the place of the first new token, in tokens from the table's first column."""
        return self.before.lengths - self.after.evicted * page_size

    def check_layer(self, layer: int, layers: int) -> None:
        """Raise ValueError if a layer has already stored its tokens."""
        if layer in self.layers:
            raise ValueError(
                f"layer {layer} has already appended in this step, and {self._missing(layers)} not "
                "yet: they must append first, or rollback() of the KVCaches undoes the step"
            )

    def fits(self, starts: Any) -> bool:
        """Return whether tokens can be stored before `check_counts` compares their numbers.

        If entries get different numbers of packed tokens, these numbers must be compared first:
        more tokens than planned for an entry would be stored beyond its pages.
        """
        if isinstance(self.counts, int):
            return True
        is_plain = isinstance(starts, np.ndarray) and starts.dtype.kind in "iu"
        return is_plain and np.array_equal(np.diff(starts), self.counts)

    def check_counts(self, layer: int, counts: PerEntry) -> None:
        """Raise ValueError if a layer has other numbers of new tokens than the earlier layers."""
        if not np.array_equal(counts, self.counts):
            raise ValueError(
                f"layer {layer} must append as many tokens as layer {min(self.layers)} has "
                f"appended in this step, {_listed(self.counts)}, got {_listed(counts)}"
            )

    def refuse_change(self, layers: int) -> None:
        """Raise ValueError, since entries cannot change in the middle of a step."""
        raise ValueError(
            f"a step is not finished: {self._missing(layers)} not appended yet; they must append "
            "first, or rollback() of the KVCaches undoes the step"
        )

    def _missing(self, layers: int) -> str:
        missing = [layer for layer in range(layers) if layer not in self.layers]
        if len(missing) == 1:
            return f"layer {missing[0]} has"
        return f"layers {', '.join(map(str, missing[:3]))}{', ...' * (len(missing) > 3)} have"


def _listed(counts: PerEntry) -> str:
    return f"{counts}" if isinstance(counts, int) else f"{counts.tolist()}"
