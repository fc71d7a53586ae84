"""Recognize the mask functions of transformers that positions alone decide.

A mask function of transformers is a closure that tells, from the indices of a query and a key,
whether the one sees the other. Those made by transformers' own factories are recognized by their
code, and what they close over says which window they mean. Any other function is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard._runtime.optional import needed

torch = needed("torch", "regard.transformers", "transformers")
masking_utils = needed("transformers.masking_utils", "regard.transformers", "transformers")


@dataclass(frozen=True)
class Pattern:
    """What a query sees by its position: regard's options of the same names."""

    is_causal: bool = False
    window: tuple[int | None, int | None] | None = None

    def __and__(self, other: Pattern) -> Pattern:
        """Return the pattern of what both show."""
        left, right = (
            min((side for side in sides if side is not None), default=None)
            for sides in zip(self.window or (None, None), other.window or (None, None), strict=True)
        )
        window = None if left is None and right is None else (left, right)
        return Pattern(self.is_causal or other.is_causal, window)


@dataclass(frozen=True)
class Extent:
    """Which positions a mask is about: up to `end`, with keys before the padding hidden or not."""

    end: int
    hides_padding: bool


def read_pattern(function: Any, extent: Extent) -> Pattern | None:
    """Return the pattern of a mask function in these positions, or None if it is unknown."""
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
    """Read ``key > query - sliding_window``: the query itself is one of the window's keys."""
    size = closed["sliding_window"]
    return Pattern(window=(size - 1, None)) if type(size) is int and size > 0 else None


def _read_two_sided_window(closed: dict[str, Any], extent: Extent) -> Pattern | None:
    """Read ``abs(query - key) <= sliding_window``."""
    size = closed["sliding_window"]
    return Pattern(window=(size, size)) if type(size) is int and size >= 0 else None


def _read_chunks(closed: dict[str, Any], extent: Extent) -> Pattern | None:
    """Read chunks of keys, counted from the end of the left padding.

    Within the first chunk, they hide nothing; beyond it, the pattern is unknown.
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
