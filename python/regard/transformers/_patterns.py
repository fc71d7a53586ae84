"""Recognize the transformers mask functions that depend on positions and on packed texts.

A transformers mask function is a closure that returns, from the indices of a query and a key,
whether the query sees the key. Functions made by transformers' factories are recognized by their
code object, and their closure variables define the window and the texts. Any other function is
unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from regard._runtime.optional import needed

torch = needed("torch", "regard.transformers", "transformers")
masking_utils = needed("transformers.masking_utils", "regard.transformers", "transformers")


@dataclass(frozen=True)
class Pattern:
    """Visibility by position, as regard's options of the same names, and by text."""

    is_causal: bool = False
    window: tuple[int | None, int | None] | None = None
    texts: tuple[Any, ...] = ()
    """Numbers of texts, shape (batch, positions): a query sees a key only if they are in the same
    text."""

    def __and__(self, other: Pattern) -> Pattern:
        """Return the intersection of two patterns."""
        left, right = (
            min((side for side in sides if side is not None), default=None)
            for sides in zip(self.window or (None, None), other.window or (None, None), strict=True)
        )
        window = None if left is None and right is None else (left, right)
        return Pattern(self.is_causal or other.is_causal, window, self.texts + other.texts)


@dataclass(frozen=True)
class Extent:
    """The tokens that a mask covers: up to `end`, with padding hidden or not."""

    end: int
    hides_padding: bool
    positions: Any = None
    """The position of each token in its text, shape (batch, end), if it is not the index."""


def read_pattern(function: Any, extent: Extent) -> Pattern | None:
    """Return the pattern of a mask function for these tokens, or None if it is unknown."""
    if function is masking_utils.causal_mask_function:
        return Pattern(is_causal=True)
    if function is masking_utils.bidirectional_mask_function:
        return Pattern()
    reader = _READERS.get(getattr(function, "__code__", None))
    return None if reader is None else reader(_closed(function), extent)


def _closed(function: Any) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}


def _read_intersection(closed: dict[str, Any], extent: Extent) -> Pattern | None:
    pattern = Pattern()
    functions = closed["mask_functions"]
    packed = [each for each in functions if getattr(each, "__code__", None) is _PACKED]
    for function in functions:
        if getattr(function, "__code__", None) is _REMAPPED:
            read = _read_remapped(_closed(function), packed, extent)
        else:
            read = read_pattern(function, extent)
        if read is None:
            return None
        pattern &= read
    return pattern


def _read_remapped(closed: dict[str, Any], packed: list[Any], extent: Extent) -> Pattern | None:
    """Read a function of the positions in texts, all of which `packed` separates.

    Within a text, positions differ as indices do. Keys of other texts that the function shows are
    hidden.
    """
    positions = closed["position_ids"]
    if len(packed) != 1 or extent.positions is not None:
        return None
    text = _closed(packed[0])["packed_sequence_mask"]
    if positions.shape != text.shape or text.shape[-1] != extent.end:
        return None
    step = text.diff()
    if not ((step > 0) | ((step == 0) & (positions.diff() == 1))).all():
        return None
    return read_pattern(closed["mask_function"], replace(extent, positions=positions))


def _read_packed(closed: dict[str, Any], extent: Extent) -> Pattern | None:
    """Read texts that follow one another in a row."""
    text = closed["packed_sequence_mask"]
    return Pattern(texts=(text,)) if text.shape[-1] == extent.end else None


def _read_window(closed: dict[str, Any], extent: Extent) -> Pattern | None:
    """Read ``key > query - sliding_window``: the window includes the query's own position."""
    size = closed["sliding_window"]
    return Pattern(window=(size - 1, None)) if type(size) is int and size > 0 else None


def _read_two_sided_window(closed: dict[str, Any], extent: Extent) -> Pattern | None:
    """Read ``abs(query - key) <= sliding_window``."""
    size = closed["sliding_window"]
    return Pattern(window=(size, size)) if type(size) is int and size >= 0 else None


def _read_chunks(closed: dict[str, Any], extent: Extent) -> Pattern | None:
    """Read chunks of keys, counted from the end of the left padding, which are like texts.

    Within the first chunk, nothing is hidden.
    """
    size, first = closed["chunk_size"], closed["left_padding"]
    if type(size) is not int or size < 1 or first.ndim != 1:
        return None
    positions = extent.positions
    if positions is None:
        if extent.end <= size and (extent.hides_padding or not first.any()):
            return Pattern()
        positions = torch.arange(extent.end, device=first.device)[None]
    return Pattern(texts=((positions - first[:, None]) // size,))


_PACKED = masking_utils.packed_sequence_mask_function(torch.zeros(1, 1)).__code__
_REMAPPED = masking_utils.remap_positions_for_packed_sequence(
    masking_utils.causal_mask_function, torch.zeros(1, 1)
).__code__
_READERS = {
    masking_utils.and_masks(masking_utils.causal_mask_function).__code__: _read_intersection,
    masking_utils.sliding_window_overlay(1).__code__: _read_window,
    masking_utils.sliding_window_bidirectional_overlay(1).__code__: _read_two_sided_window,
    masking_utils.chunked_overlay(1, torch.zeros(1, dtype=torch.int64)).__code__: _read_chunks,
    _PACKED: _read_packed,
}
