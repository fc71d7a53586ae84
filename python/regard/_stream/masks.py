"""The masks of a stream: over all keys, cut along their last axis as chunks arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array, converted, stand_in
from regard._arguments.masks import Masks, SeenKeys, as_mask, is_sparse, parts_of
from regard._stream.source import unread

if TYPE_CHECKING:
    from regard._arguments.arrays import Array


class StreamMask:
    """The masks of a call over all keys: None, a bool mask, a float mask, or a pair of both.

    Parameters
    ----------
    mask : array_like, SparseMask, pair, or None
        Arrays that are not in memory are not read yet. A last axis of 1 applies to all keys, except
        in sparse masks, whose missing keys are hidden.
    total : int or None
        The number of keys, if known.
    """

    def __init__(self, mask: Any, total: int | None) -> None:
        self._unread = Masks.of_parts(
            [
                part
                if is_sparse(part)
                else unread("mask", as_mask(part) if isinstance(part, list) else part)
                for part in parts_of(mask)
            ]
        )
        self._seen = SeenKeys.of(self._unread)
        self.stand_ins(0)  # raises an exception if the types are wrong
        if total is not None:
            self.check_end(total)

    @property
    def is_given(self) -> bool:
        """Whether there is a mask."""
        return bool(self._unread.arrays)

    def stand_ins(self, kv_len: int) -> Masks:
        """Return masks without memory, for a number of keys, with the types and other axes."""

        def without_memory(part: Any) -> Any:
            if is_sparse(part):
                return part[..., :kv_len]
            shape = (*part.shape[:-1], kv_len) if _has_keys(part) else part.shape
            return as_mask(stand_in(shape, part.dtype))

        return self._unread.map(without_memory)

    def narrowed(self, visible: tuple[int, float]) -> tuple[int, float]:
        """Narrow the begin and the end of visible keys to the keys that a sparse mask shows."""
        if self._seen is None:
            return visible
        first, last = max(visible[0], self._seen.first), min(visible[1], self._seen.end)
        return (first, last) if first < last else (0, 0)

    def shows(self, start: int, stop: int) -> bool:
        """Return whether a query may see one of some keys. Only sparse masks are examined."""
        return self._seen is None or self._seen.any(start, stop)

    def check_chunk(self, number: int, start: int, stop: int) -> None:
        """Raise ValueError if a chunk has keys that the mask does not cover."""
        for part in self._unread.arrays:
            if not is_sparse(part) and _has_keys(part) and stop > part.shape[-1]:
                raise ValueError(
                    f"mask must have as many columns as there are keys, or 1, got shape "
                    f"{part.shape}, and chunk {number} holds keys {start} to {stop - 1}"
                )

    def check_end(self, total: int) -> None:
        """Raise ValueError if the mask is for another number of keys."""
        for part in self._unread.arrays:
            if is_sparse(part) and part.shape[-1] > total:
                raise ValueError(
                    f"a sparse mask must have at most as many columns as there are keys, {total}, "
                    f"got shape {part.shape}"
                )
            if not is_sparse(part) and _has_keys(part) and part.shape[-1] != total:
                raise ValueError(
                    f"mask must have as many columns as there are keys, {total}, or 1, got shape "
                    f"{part.shape}"
                )

    def arrays(self) -> list[Array]:
        """Return the arrays of the masks that are in memory."""
        return [part for part in self._unread.arrays if isinstance(part, np.ndarray)]

    def read(self, start: int, stop: int) -> Masks:
        """Return copies of the masks of some keys."""

        def copied(part: Any) -> Any:
            if is_sparse(part):
                return part[..., start:stop]
            own = part[..., start:stop] if _has_keys(part) else part
            array = as_array("mask", own)
            return as_mask(converted(array, array.dtype))

        return self._unread.map(copied)


def _has_keys(part: Any) -> bool:
    return len(part.shape) > 0 and part.shape[-1] != 1
