"""Recognize the transformers mask functions that depend only on positions.

A transformers mask function is a closure that returns, from the indices of a query and a key,
whether the query sees the key. Functions made by transformers' factories are recognized by their
code object, and their closure variables define the window. Any other function is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard._runtime.optional import needed

torch = needed("torch", "regard.transformers", "transformers")
masking_utils = needed("transformers.masking_utils", "regard.transformers", "transformers")


@dataclass(frozen=True)
class Pattern:
    """Visibility by position, as regard's options of the same names."""

    is_causal: bool = False
    window: tuple[int | None, int | None] | None = None

    def __and__(self, other: Pattern) -> Pattern:
        """Return the intersection of two patterns."""
        left, right = (
            min((side for side in sides if side is not None), default=None)
            for sides in zip(self.window or (None, None), other.window or (None, None), strict=True)
        )
        window = None if left is None and right is None else (left, right)
        return Pattern(self.is_causal or other.is_causal, window)


@dataclass(frozen=True)
class Extent:
    """The positions that a mask covers: up to `end`, with padding hidden or not."""

    end: int
    hides_padding: bool


def read_pattern(function: Any, extent: Extent) -> Pattern | None:
    """Return the pattern of a mask function at these positions, or None if it is unknown."""
    if function is masking_utils.causal_mask_function:
        return Pattern(is_causal=True)
    if function is masking_utils.bidirectional_mask_function:
        return Pattern()
    reader = _READERS.get(getattr(function, "__code__", None))
    if reader is None:
        return None
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return reader({name: cell.cell_contents for name, cell in cells}, extent)


def _read_intersection(closed: dict[str, Any], extent: Extent) -> Pattern | None:
    pattern = Pattern()
    for function in closed["mask_functions"]:
        read = read_pattern(function, extent)
        if read is None:
            return None
        pattern &= read
    return pattern


def _read_window(closed: dict[str, Any], extent: Extent) -> Pattern | None:
    """Read ``key > query - sliding_window``: the window includes the query's own position."""
    size = closed["sliding_window"]
    return Pattern(window=(size - 1, None)) if type(size) is int and size > 0 else None


def _read_two_sided_window(closed: dict[str, Any], extent: Extent) -> Pattern | None:
    """Read ``abs(query - key) <= sliding_window``."""
    size = closed["sliding_window"]
    return Pattern(window=(size, size)) if type(size) is int and size >= 0 else None


def _read_chunks(closed: dict[str, Any], extent: Extent) -> Pattern | None:
    """Read chunks of keys, counted from the end of the left padding.

    Within the first chunk, nothing is hidden. Beyond it, the pattern is unknown.
    """
    if extent.end > closed["chunk_size"]:
        return None
    if not extent.hides_padding and closed["left_padding"].any():
        return None
    return Pattern()


_READERS = {
    masking_utils.and_masks(masking_utils.causal_mask_function).__code__: _read_intersection,
    masking_utils.sliding_window_overlay(1).__code__: _read_window,
    masking_utils.sliding_window_bidirectional_overlay(1).__code__: _read_two_sided_window,
    masking_utils.chunked_overlay(1, torch.zeros(1, dtype=torch.int64)).__code__: _read_chunks,
}
