"""What does not change in the life of a cache, and where a position lies in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import DTypeLike, NDArray

    Array = NDArray[Any]

STORED_TYPES = ("float16", "bfloat16", "float32", "float64", "int8")


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes, type and window of a cache, or the size of its pages.

    Without a window, position p lies in slot p. With one, the first `sink_tokens` positions do, and
    all others go around the ring of slots behind them.
    """

    batch: int
    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: np.dtype[Any]
    window: int | None
    sink_tokens: int
    capacity: int | None
    page_size: int | None = None

    @property
    def is_quantised(self) -> bool:
        """Whether rows have scales, and keys are rotated."""
        return self.dtype == np.int8

    def ring(self, slots: int) -> int:
        """Return how many of the slots are the ring."""
        return max(1, slots - self.sink_tokens)

    def runs(self, slots: int, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield position, slot and count of the stretches in which positions lie side by side."""
        while start < stop:
            slot, count = start, stop - start
            if self.window is not None:
                if start < self.sink_tokens:
                    count = min(count, self.sink_tokens - start)
                else:
                    turn = (start - self.sink_tokens) % self.ring(slots)
                    slot = self.sink_tokens + turn
                    count = min(count, self.ring(slots) - turn)
            yield start, slot, count
            start += count

    def spans(self, slots: int, length: int, first: int) -> list[tuple[int, int]]:
        """Return the positions that `slots` slots can hold of `length` tokens, as (start, stop).

        `first` is the first position behind the sinks that has not been overwritten yet.
        """
        if self.window is None:
            return [(0, length)]
        kept = max(first, length - self.ring(slots))
        return [(0, min(length, self.sink_tokens)), (max(kept, self.sink_tokens), length)]

    def check_capacity(self, after: Array, counts: Array) -> None:
        """Refuse an append that leads to more than there is room for, without a window."""
        if self.capacity is None:
            return
        entry = int(after.argmax())
        if after[entry] > self.capacity:
            raise ValueError(
                f"the cache has capacity {self.capacity}, and appending {counts[entry]} would make "
                f"it {after[entry]} tokens long"
            )

    def slots_for(self, slots: int, after: Array, counts: Array) -> int:
        """Return how many slots there must be before `counts` tokens make lengths `after`.

        Of a window's ring, the append overwrites only what no query at or behind the last
        position before it can see: it can be undone, and what dies on the way loses nothing.
        """
        length, new = int(after.max()), int(counts.max())
        needed, most = length, None
        if self.window is not None:
            most = self.sink_tokens + self.window + new
            needed = min(length, most)
        if self.capacity is not None:
            if self.window is None:
                self.check_capacity(after, counts)
            elif needed > self.capacity:
                raise ValueError(
                    f"key must have at most {self.capacity - self.sink_tokens - self.window} new "
                    f"tokens at once, got {new}: they lie beside sink_tokens={self.sink_tokens} "
                    f"and window={self.window} within capacity {self.capacity}"
                )
            return self.capacity
        if needed > slots:
            grown = max(needed, 2 * slots, 16)
            return grown if most is None else min(grown, most)
        # A long prompt's slots are given back, but not at every change of an append's length.
        return most if most is not None and slots > 2 * most else slots


def stored_type(dtype: DTypeLike) -> np.dtype[Any]:
    """Return a type that a cache can store, or raise TypeError."""
    needed = "dtype must be float16, bfloat16, float32, float64 or int8, got"
    if isinstance(dtype, str) and dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError("dtype bfloat16 needs the package ml_dtypes") from None
        dtype = ml_dtypes.bfloat16
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        raise TypeError(f"{needed} {dtype!r}") from None
    if dtype is None or wanted.name not in STORED_TYPES:
        raise TypeError(f"{needed} {None if dtype is None else wanted}")
    native: np.dtype[Any] = wanted.newbyteorder("=")
    return native
