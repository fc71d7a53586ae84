"""Masks of a stream: over all keys, cut along their last axis as chunks come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_masks
from regard._stream.arrays import decoded, is_in_file, unread

if TYPE_CHECKING:
    from numpy.typing import NDArray


class StreamMask:
    """None, an array-like of bool or float, or a pair of both, each over all keys.

    Parameters
    ----------
    mask : array_like, pair of array_like, or None
        Nothing is read of what is not in memory. A last axis of 1 stands for all keys.
    total : int or None
        How many keys there are, if that is known.
    """

    def __init__(self, mask: Any, total: int | None) -> None:
        is_pair = isinstance(mask, tuple) and len(mask) == 2
        parts = mask if is_pair else () if mask is None else (mask,)
        self._is_pair = is_pair
        self._parts = [unread("mask", part) for part in parts]
        self.is_given = mask is not None
        self._converted(self._hollow(0))
        if total is not None:
            self.check_end(total)

    def _hollow(self, length: int) -> list[NDArray[Any]]:
        """Arrays of no memory, with the types and shapes that the parts have for `length` keys."""
        return [
            np.broadcast_to(
                np.zeros((), part.dtype),
                (*part.shape[:-1], length) if _has_keys(part) else part.shape,
            )
            for part in self._parts
        ]

    def _converted(self, parts: list[NDArray[Any]]) -> Any:
        if not self._is_pair:
            return as_masks(parts[0]) if parts else None
        # Two arrays of one kind and one shape would pass as one mask of two rows.
        kinds = tuple(part.dtype.kind for part in parts)
        if kinds[0] == kinds[1]:
            raise TypeError(
                "mask must be a bool array, a float array or a pair (bool, float) of both, got a "
                f"pair ({parts[0].dtype}, {parts[1].dtype})"
            )
        return as_masks(tuple(parts))

    def without_keys(self) -> Any:
        """Return the mask of no keys, which says what the other axes are."""
        return self._converted(self._hollow(0))

    def check_chunk(self, number: int, start: int, stop: int) -> None:
        """Raise ValueError if a chunk has keys that the mask does not reach."""
        for part in self._parts:
            if _has_keys(part) and stop > part.shape[-1]:
                raise ValueError(
                    f"mask must have as many columns as there are keys, or 1, got shape "
                    f"{part.shape}, and chunk {number} holds keys {start} to {stop - 1}"
                )

    def check_end(self, total: int) -> None:
        """Raise ValueError if the mask is for another number of keys."""
        for part in self._parts:
            if _has_keys(part) and part.shape[-1] != total:
                raise ValueError(
                    f"mask must have as many columns as there are keys, {total}, or 1, got shape "
                    f"{part.shape}"
                )

    def arrays(self) -> list[NDArray[Any]]:
        """Return those of its arrays that are in memory."""
        return [part for part in self._parts if isinstance(part, np.ndarray)]

    def read(self, start: int, stop: int) -> Any:
        """Return the mask of some keys, in memory."""
        return self._converted(
            [
                _in_memory(part, part[..., start:stop] if _has_keys(part) else part)
                for part in self._parts
            ]
        )


def _has_keys(part: Any) -> bool:
    return len(part.shape) > 0 and part.shape[-1] != 1


def _in_memory(whole: Any, part: Any) -> NDArray[Any]:
    """Return a part of a mask as an array that nobody else writes to until the call has ended."""
    if not isinstance(whole, np.ndarray):
        return decoded("mask", part)
    return part.copy() if is_in_file(whole) else np.asarray(part)
