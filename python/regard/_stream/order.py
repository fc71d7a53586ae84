"""The order in which the states of a stream's chunks are merged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._attention.merge import merge_attention_states

if TYPE_CHECKING:
    from numpy.typing import NDArray

    State = tuple[NDArray[Any], NDArray[Any]]

# Each merge rounds, and the error of a chain of n merges is about sqrt(n) roundings. With groups of
# 16, a state of 65536 chunks results from 64 merges, and at most 4 groups are open.
_GROUP = 16


def merged(first: State, second: State, threads: int | None) -> State:
    """Merge two states."""
    outputs, lses = zip(first, second, strict=True)
    return merge_attention_states(outputs, lses, threads=threads)


class MergeOrder:
    """Merging of successive states in groups of 16 states, of 16 groups, and so on.

    The groups of a state depend only on its number. Omitting a state in which all rows are fully
    masked changes no bit.
    """

    def __init__(self, threads: int | None) -> None:
        self._threads = threads
        self._open: list[tuple[int, State] | None] = []

    def add(self, number: int, output: NDArray[Any], lse: NDArray[Any]) -> None:
        """Add the state of the chunk with this number. Numbers must increase."""
        self._push(0, number, (output.astype(np.float64), lse.astype(np.float64)))

    def _push(self, level: int, number: int, state: State) -> None:
        """Merge a state into its group, after moving a group that it completes up one level."""
        if level == len(self._open):
            self._open.append(None)
        group, held = number // _GROUP, self._open[level]
        self._open[level] = None
        if held is not None and held[0] == group:
            state = merged(held[1], state, self._threads)
        elif held is not None:
            self._push(level + 1, *held)
        self._open[level] = group, state

    def finish(self) -> State | None:
        """Return the state of all chunks together, or None if no state was added."""
        level = 0
        while level < len(self._open):
            held, self._open[level] = self._open[level], None
            if held is not None and any(self._open):
                self._push(level + 1, *held)
            elif held is not None:
                return held[1]
            level += 1
        return None
